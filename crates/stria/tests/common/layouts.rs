//! Default layouts with components, as `lfs setstripe -E` sets them.

use std::{fs::File, path::Path};

use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, StripeCount, StripeSpec};
use rpc::message::control::{ControlReply, ControlRequest, Subject};

/// Watermarks of [`grow_in`].
pub const WATERMARKS: [u64; 2] = [64 << 10, 384 << 10];

/// What is made in `directory` from now on gets one stripe up to the first watermark, two up to the
/// second, then all.
pub fn grow_in(directory: &Path) {
    let component = |end, stripe_count| {
        let stripes = StripeSpec { stripe_count, stripe_bytes: Some(64 << 10), ..StripeSpec::default() };
        ComponentSpec { end, backing: BackingSpec::Striped(stripes) }
    };
    let spec = LayoutSpec::Composite(vec![
        component(WATERMARKS[0], StripeCount::Exactly(1)),
        component(WATERMARKS[1], StripeCount::Exactly(2)),
        component(END_OF_FILE, StripeCount::All),
    ]);
    match call(directory, &ControlRequest::SetDefaultLayout(Some(spec))) {
        ControlReply::Done => {}
        reply => panic!("the default layout was not set: {reply:?}"),
    }
}

/// The layout of a file.
pub fn layout_of(path: &Path) -> Layout {
    match call(path, &ControlRequest::GetLayout(Subject::This)) {
        ControlReply::Layout { layout: Some(layout), .. } => layout,
        reply => panic!("{} has no layout: {reply:?}", path.display()),
    }
}

/// Which components of a file have objects.
pub fn instantiated(path: &Path) -> Vec<bool> {
    layout_of(path).components.iter().map(layout::Component::is_instantiated).collect()
}

fn call(path: &Path, request: &ControlRequest) -> ControlReply {
    let file = File::open(path).expect("open for an ioctl");
    host::ioctl::call(&file, request).expect("the mount answers")
}
