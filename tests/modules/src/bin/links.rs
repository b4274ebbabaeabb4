//! Checks the links of all Markdown files of the repository: that their files exist, and that the
//! headings that they name do. Links to other hosts are not followed.
//!
//! Run in the root of the repository. Prints each link that leads nowhere, and fails then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A Markdown file: the anchors of its headings, and its links with their lines.
#[derive(Debug, Default)]
struct Page {
    anchors: BTreeSet<String>,
    links: Vec<(usize, String)>,
}

/// The anchor of a heading, as mdBook and GitHub make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        let mut count: HashMap<String, usize> = HashMap::new();
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        for (event, place) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    let before = count.entry(name.clone()).or_default();
                    let number = if *before > 0 { format!("-{before}") } else { String::new() };
                    *before += 1;
                    page.anchors.insert(name + &number);
                }
                Event::Text(words) | Event::Code(words) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&words));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = text[..place.start].matches('\n').count() + 1;
                    page.links.push((line, dest_url.into_string()));
                }
                _ => {}
            }
        }
        page
    }
}

/// The path without `.` and `..`; `None` if it leaves the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => normal.pop().then_some(())?,
            _ => {}
        }
    }
    Some(normal)
}

/// The reason why a link of a page leads nowhere, if it does.
fn broken(
    page: &Path,
    link: &str,
    pages: &BTreeMap<PathBuf, Page>,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = link.split_once('#').map_or((link, None), |(a, b)| (a, Some(b)));
    let target = match file {
        "" => page.to_owned(),
        file => match normal(&page.parent().unwrap_or(Path::new("")).join(file)) {
            Some(target) => target,
            None => return Some("outside of the repository"),
        },
    };
    if !exists(&target) {
        return Some("no such file");
    }
    let anchors = &pages.get(&target)?.anchors;
    heading.is_some_and(|heading| !anchors.contains(heading)).then_some("no such heading")
}

fn main() -> anyhow::Result<ExitCode> {
    let listed = Command::new("git").args(["ls-files", "-z", "*.md"]).output().context("git")?;
    ensure!(listed.status.success(), "git ls-files failed: run this in the repository");
    let files = String::from_utf8(listed.stdout)?;
    let mut pages = BTreeMap::new();
    // A symbolic link's file is checked where it is.
    for file in files.split_terminator('\0').filter(|file| !Path::new(file).is_symlink()) {
        let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
        pages.insert(PathBuf::from(file), Page::parse(&text));
    }
    let (mut links, mut bad) = (0, 0);
    for (path, page) in &pages {
        for (line, link) in &page.links {
            links += 1;
            if let Some(why) = broken(path, link, &pages, &Path::exists) {
                bad += 1;
                println!("{}:{line}: {link}: {why}", path.display());
            }
        }
    }
    ensure!(links > 0, "no Markdown file has a link: run this in the root of the repository");
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let a = Page::parse("# One `two`: 3\n\n## Same\n## Same\n[x](b.md#top) [y](#no)\n");
        assert_eq!(a.anchors, ["one-two-3", "same", "same-1"].map(String::from).into());
        assert_eq!(a.links, [(5, "b.md#top".to_owned()), (5, "#no".to_owned())]);
        let b = Page::parse("# Top\n```\n[code](nothing)\n```\n");
        assert!(b.links.is_empty());
        let pages: BTreeMap<_, _> =
            [("docs/a.md", a), ("docs/b.md", b)].map(|(path, page)| (path.into(), page)).into();
        let exists = |path: &Path| pages.contains_key(path) || path == Path::new("README.md");
        let check = |link| broken(Path::new("docs/a.md"), link, &pages, &exists);
        for link in ["b.md#top", "b.md", "#same-1", "../README.md", "https://no.where/x#y"] {
            assert_eq!(check(link), None, "{link}");
        }
        assert_eq!(check("c.md"), Some("no such file"));
        assert_eq!(check("b.md#bottom"), Some("no such heading"));
        assert_eq!(check("#no"), Some("no such heading"));
        assert_eq!(check("../../x"), Some("outside of the repository"));
    }
}
