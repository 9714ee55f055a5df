//! The documentation is a book: its table of contents lists each page once, each page begins with the question that it
//! answers, and every link has a target.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::files::{read, workspace};

const FOLDERS: [&str; 11] = [
    ".",
    "docs",
    "examples",
    "e2e-tests",
    "deploy/chart",
    "deploy/fence",
    "deploy/k2s",
    "deploy/monitoring",
    "deploy/policies",
    "deploy/reservations",
    "deploy/webhook",
];

/// A page: the anchors of its headings, and the targets of its links.
#[derive(Default)]
struct Page {
    anchors: BTreeSet<String>,
    links: Vec<String>,
}

impl Page {
    fn read(text: &str) -> Self {
        let (mut page, mut heading) = (Self::default(), None::<String>);
        for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => heading.iter_mut().for_each(|heading| heading.push_str(&text)),
                Event::End(TagEnd::Heading(_)) => page.add_anchor(&heading.take().unwrap_or_default()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor of a heading, as GitHub and mdBook do. The second of two equal anchors ends with `-1`.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        let anchor: String = kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|anchor| !self.anchors.contains(anchor));
        self.anchors.extend(free);
    }
}

/// All pages, by their paths from the root of the repository.
fn pages() -> BTreeMap<PathBuf, Page> {
    let root = workspace();
    let files = FOLDERS.iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let files = files.map(|file| file.unwrap().path()).filter(|file| file.extension().is_some_and(|end| end == "md"));
    let page = |file: PathBuf| {
        let page = Page::read(&fs::read_to_string(&file).unwrap());
        (normal(file.strip_prefix(&root).unwrap()), page)
    };
    files.map(page).collect()
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, part| {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
        normal
    })
}

/// The mistake in a link of a page, if there is one.
fn broken(pages: &BTreeMap<PathBuf, Page>, file: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() { file.to_owned() } else { normal(&file.parent().unwrap().join(path)) };
    if !workspace().join(&target).exists() {
        return Some(format!("{}: {link}: {} does not exist", file.display(), target.display()));
    }
    let anchor = anchor?;
    let known = pages.get(&target).is_some_and(|page| page.anchors.contains(anchor));
    (!known).then(|| format!("{}: {link}: no such heading", file.display()))
}

#[test]
fn every_link_has_a_target() {
    let pages = pages();
    let links = pages.iter().flat_map(|(file, page)| page.links.iter().map(move |link| (file, link)));
    let broken: Vec<String> = links.filter_map(|(file, link)| broken(&pages, file, link)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let pages = pages();
    let contents = Path::new("docs/SUMMARY.md");
    let mut listed: Vec<PathBuf> =
        pages[contents].links.iter().map(|link| normal(&Path::new("docs").join(link))).collect();
    listed.sort();
    let written: Vec<PathBuf> =
        pages.keys().filter(|page| page.starts_with("docs") && *page != contents).cloned().collect();
    assert_eq!(listed, written);
}

#[test]
fn the_table_of_contents_has_the_titles_of_the_pages() {
    for line in read("docs/SUMMARY.md").lines() {
        let Some((title, link)) = line.strip_prefix("- [").and_then(|entry| entry.split_once("](")) else { continue };
        let page = read(format!("docs/{}", link.trim_end_matches(')')));
        assert_eq!(page.lines().next(), Some(format!("# {title}").as_str()), "{link}");
    }
}

#[test]
fn every_page_begins_with_the_question_that_it_answers() {
    let contents = Path::new("docs/SUMMARY.md");
    for page in pages().into_keys().filter(|page| page.starts_with("docs") && *page != contents) {
        let text = read(page.to_str().unwrap());
        let mut lines = text.lines();
        let (title, question) = (lines.next().unwrap_or_default(), lines.nth(1).unwrap_or_default());
        let asks = title.starts_with("# ") && question.starts_with("> ") && question.ends_with('?');
        assert!(asks, "{}: {title:?}, {question:?}", page.display());
    }
}
