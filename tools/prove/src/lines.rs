//! The lines of a module's source, from its debug information.
//!
//! A module is an object file: its sections have no addresses yet, so the information names places
//! in them by relocations. Here each section gets its own addresses, which a copy of the
//! information is relocated to.

use std::convert::Infallible;

use addr2line::Context;
use addr2line::gimli::{DwarfSections, EndianSlice, LittleEndian, SectionId};
use object::{
    File, Object, ObjectSection, ObjectSymbol, RelocationKind, RelocationTarget, SectionIndex,
    SectionKind,
};
use tofu_ui::printable;

/// The folder in which sources were compiled: see `tofu_image::Module`.
const FOLDER: &str = "/src/own/";
/// The most functions that are named for an address.
const MOST: usize = 8;

/// The debug information of a module.
pub(crate) struct Information(DwarfSections<Vec<u8>>);

impl Information {
    /// That of a module's file, if it has any.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let file = File::parse(bytes).ok()?;
        file.section_by_name(SectionId::DebugLine.name())?;
        let load = |id: SectionId| Ok::<_, Infallible>(relocated(&file, id).unwrap_or_default());
        let Ok(sections) = DwarfSections::load(load);
        Some(Self(sections))
    }

    /// Prepares for look-ups.
    pub(crate) fn lines(&self) -> Option<Lines<'_>> {
        let dwarf = self.0.borrow(|bytes| EndianSlice::new(bytes, LittleEndian));
        Context::from_dwarf(dwarf).ok().map(Lines)
    }
}

/// Source lines by place.
pub(crate) struct Lines<'a>(Context<EndianSlice<'a, LittleEndian>>);

/// A function of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its name.
    pub(crate) function: Option<String>,
    /// The file and line in it.
    pub(crate) at: Option<(String, u32)>,
}

impl Lines<'_> {
    /// The functions at an offset in a section. The last one is that of the symbol table, and the
    /// ones before it were compiled into it, the innermost first.
    pub(crate) fn find(&self, section: SectionIndex, offset: u64) -> Vec<Line> {
        let mut found = Vec::new();
        let address = beginning(section).wrapping_add(offset);
        let Ok(mut frames) = self.0.find_frames(address).skip_all_loads() else { return found };
        while found.len() < MOST
            && let Ok(Some(frame)) = frames.next()
        {
            let name = frame.function.as_ref().and_then(|name| name.demangle().ok());
            let at = frame.location.and_then(|at| Some((file_name(at.file?), at.line?)));
            found.push(Line { function: name.map(|name| printable(&name)), at });
        }
        found
    }
}

/// The name of a file, relative to the folder of the sources if it is in there.
fn file_name(path: &str) -> String {
    let path = path.rsplit_once(FOLDER).map_or(path, |(_, inside)| inside);
    printable(path.trim_start_matches("./"))
}

/// The address that a section gets. Sections of code do not overlap, and none begins at 0, which
/// means that there is no code.
fn beginning(section: SectionIndex) -> u64 {
    (section.0 as u64 + 1) << 32
}

/// The content of a section with debug information, in which places in code are addresses.
fn relocated(file: &File<'_>, id: SectionId) -> Option<Vec<u8>> {
    let section = file.section_by_name(id.name())?;
    let mut bytes = section.data().ok()?.to_vec();
    for (at, relocation) in section.relocations() {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
        let Ok(symbol) = file.symbol_by_index(symbol) else { continue };
        let target = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let code = target.filter(|target| target.kind() == SectionKind::Text);
        let base = code.map_or(0, |code| beginning(code.index()));
        let value = base.wrapping_add(symbol.address()).wrapping_add_signed(relocation.addend());
        let width = usize::from(relocation.size() / 8);
        let begin = usize::try_from(at).ok();
        let place = begin.and_then(|at| bytes.get_mut(at..at.checked_add(width)?));
        if let (RelocationKind::Absolute, Some(place)) = (relocation.kind(), place)
            && let Some(value) = value.to_le_bytes().get(..width)
        {
            place.copy_from_slice(value);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    const SOURCE: &str = "static inline int inner(volatile int *at)\n{\n\treturn *at;\n}\n\
                          int outer(volatile int *at)\n{\n\treturn inner(at) + 1;\n}\n\
                          int other(volatile int *at)\n{\n\treturn at[1];\n}\n";

    /// An object file with two functions in a section each, or `None` without a compiler.
    fn object() -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (folder.path().join("x.c"), folder.path().join("x.o"));
        fs::write(&source, SOURCE).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-g", "-O2", "-c", "-ffunction-sections", "-o"]).arg(&object).arg(&source);
        let Ok(status) = gcc.status() else {
            eprintln!("SKIP lines: there is no gcc");
            return None;
        };
        assert!(status.success());
        Some(fs::read(object).unwrap())
    }

    /// All that is found for the bytes of a function.
    fn found(lines: &Lines<'_>, file: &File<'_>, function: &str) -> Vec<Vec<(String, u32)>> {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function)).unwrap();
        let section = symbol.section_index().unwrap();
        let places = (symbol.address()..symbol.address() + symbol.size()).map(|offset| {
            let found = lines.find(section, offset).into_iter();
            found.map(|line| (line.function.unwrap(), line.at.unwrap().1)).collect()
        });
        places.collect()
    }

    #[test]
    fn inlined_functions_come_first() {
        let Some(object) = object() else { return };
        let information = Information::parse(&object).unwrap();
        let (lines, file) = (information.lines().unwrap(), File::parse(&object[..]).unwrap());
        let outer = found(&lines, &file, "outer");
        assert!(outer.contains(&vec![("inner".into(), 3), ("outer".into(), 7)]), "{outer:?}");
        let other = found(&lines, &file, "other");
        assert!(other.contains(&vec![("other".into(), 11)]), "{other:?}");
        assert!(!other.concat().iter().any(|(name, _)| name != "other"), "{other:?}");
    }

    #[test]
    fn file_without_lines_has_no_information() {
        assert!(Information::parse(b"\x7fELF but no more").is_none());
        assert!(Information::parse(b"").is_none());
    }

    #[test]
    fn files_are_named_within_the_sources_folder() {
        assert_eq!(file_name("/src/own/netdev/link.rs"), "netdev/link.rs");
        assert_eq!(file_name("./include/linux/io.h"), "include/linux/io.h");
        assert_eq!(file_name("/other/x.c"), "/other/x.c");
    }
}
