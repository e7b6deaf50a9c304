//! A client of this process for work in the background. It is mounted only while there is something
//! to do, so that a restart does not wait for a client that cannot come back.

use std::sync::Arc;

use client::{FileSystem, MountOptions};
use rt::Seams;
use types::FsResult;

/// The options of such clients.
pub type BackgroundOptions = Arc<dyn Fn() -> MountOptions + Send + Sync>;

/// See the module documentation.
pub struct BackgroundClient {
    seams: Seams,
    options: BackgroundOptions,
    mounted: Option<Arc<FileSystem>>,
}

impl BackgroundClient {
    /// Not mounted yet.
    pub fn new(seams: &Seams, options: BackgroundOptions) -> Self {
        Self { seams: seams.clone(), options, mounted: None }
    }

    /// The client, which is mounted from now on.
    pub async fn mounted(&mut self) -> FsResult<Arc<FileSystem>> {
        if let Some(client) = &self.mounted {
            return Ok(client.clone());
        }
        let client = FileSystem::mount(self.seams.clone(), (self.options)()).await?;
        Ok(self.mounted.insert(client).clone())
    }

    /// There is nothing to do.
    pub async fn unmount(&mut self) {
        if let Some(client) = self.mounted.take() {
            client.unmount().await;
        }
    }
}
