//! Manual pages, one for each command: sections of `stria`'s pages come from clap's definition,
//! those of `lfs` are its help text. The layout of text in columns is kept.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Context;
use clap::Command;
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use lfs::definition;

/// The program that mount(8) calls is the same binary.
const MOUNT_HELPER: &str = ".so man1/stria-mount.1\n";
const VERSION: &str = concat!("StriaFS ", env!("CARGO_PKG_VERSION"));

/// Writes all pages into `directory`, by section as `man` has them.
pub fn write(mut stria: Command, directory: &Path) -> anyhow::Result<()> {
    let mut pages = vec![("mount.fuse.stria.8".to_owned(), MOUNT_HELPER.to_owned())];
    // So that the pages of subcommands show the options they inherit.
    stria.build();
    of_stria(&stria, "stria", &mut pages)?;
    of_lfs(&mut pages)?;
    for (name, text) in pages {
        let section = format!("man{}", name.rsplit('.').next().unwrap_or_default());
        let directory = directory.join(section);
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The pages of a command and of the visible ones below it, by file name. `lfs` has pages of its
/// own.
fn of_stria(command: &Command, name: &str, pages: &mut Vec<(String, String)>) -> anyhow::Result<()> {
    let mut page = Vec::new();
    let man = Man::new(command.clone()).title(name).source(VERSION).manual("StriaFS");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut text = String::from_utf8(page)?;
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        text.push_str(&section("NOTES", &notes.to_string()));
    }
    pages.push((format!("{name}.1"), text));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        match below.get_name() {
            "lfs" => pages.push((format!("{name}-lfs.1"), ".so man1/lfs.1\n".to_owned())),
            word => of_stria(below, &format!("{name}-{word}"), pages)?,
        }
    }
    Ok(())
}

fn of_lfs(pages: &mut Vec<(String, String)>) -> anyhow::Result<()> {
    let purpose = "layouts and space of mounted StriaFS file systems";
    pages.push(("lfs.1".to_owned(), lfs_page("lfs", purpose, &definition::help(None))?));
    for (name, purpose) in definition::commands() {
        let title = format!("lfs-{name}");
        let page = lfs_page(&title, purpose, &definition::help(Some(name)))?;
        pages.push((format!("{title}.1"), page));
    }
    Ok(())
}

fn lfs_page(title: &str, purpose: &str, help: &str) -> anyhow::Result<String> {
    let mut page = Roff::new();
    page.control("TH", [title, "1", "", VERSION, "StriaFS"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{title} - {purpose}"))]);
    Ok(page.to_roff() + &section("DESCRIPTION", help))
}

/// A section with text as it is laid out.
fn section(heading: &str, text: &str) -> String {
    let mut section = format!(".SH {heading}\n.nf\n");
    for line in text.trim_end().lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        // A dot at the beginning would be a request.
        let guard = if line.starts_with('.') { "\\&" } else { "" };
        let _ = writeln!(section, "{guard}{line}");
    }
    section.push_str(".fi\n");
    section
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let place = tempfile::tempdir().unwrap();
        write(super::super::stria(), place.path()).unwrap();
        assert!(place.path().join("man8/mount.fuse.stria.8").exists());
        let names: BTreeSet<String> = fs::read_dir(place.path().join("man1"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        for expected in ["stria.1", "stria-serve.1", "stria-ctl-get_param.1", "lfs.1", "lfs-setstripe.1", "stria-lfs.1"]
        {
            assert!(names.contains(expected), "{expected} is not in {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("generate") || name.contains("help")), "{names:?}");
        let page = |name: &str| fs::read_to_string(place.path().join("man1").join(name)).unwrap();
        assert!(page("stria-mount.1").contains("noatime") && page("lfs-find.1").contains("\\-\\-stripe\\-count"));
    }

    #[test]
    fn text_stays_as_it_is_laid_out() {
        assert_eq!(section("NOTES", ".so\n  it's  \\n -x\n"), ".SH NOTES\n.nf\n\\&.so\n  it\\(aqs  \\en \\-x\n.fi\n");
    }
}
