//! Finds where in its program a small guest is: functions and lines, from its registers, its memory
//! and its ELF file.
//!
//! Frames are found by frame pointers (`-C force-frame-pointers=yes`), with which the shipped
//! guests and those of `tofu guest new` are built. Guest memory is not trusted: the number of
//! frames is bounded, and an address outside RAM or the program ends the walk.

use std::fmt;

use addr2line::gimli::{DwarfSections, EndianSlice, LittleEndian, SectionId};
use addr2line::{Context, demangle_auto};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use tofu_vmm::Registers;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// The most frames that are examined.
const MOST: usize = 32;
/// The function that reports an exception. The faulting instruction is treated as its caller.
const REPORTS_EXCEPTION: &str = "report_exception";
/// The function that handles panics.
const HANDLES_PANIC: &str = "rust_begin_unwind";

/// A function that a guest was in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Address of the instruction.
    pub address: u64,
    /// Name of the function.
    pub function: Option<String>,
    /// Source file and line.
    pub line: Option<(String, u32)>,
}

impl Frame {
    /// The bytes of its names.
    pub(crate) fn bytes(&self) -> usize {
        let line = self.line.as_ref().map_or(0, |(file, _)| file.len());
        line + self.function.as_ref().map_or(0, String::len)
    }
}

impl fmt::Display for Frame {
    /// `0x401234 function (file.rs:12)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)?;
        if let Some(function) = &self.function {
            write!(f, " {function}")?;
        }
        match &self.line {
            Some((file, line)) => write!(f, " ({file}:{line})"),
            None => Ok(()),
        }
    }
}

/// Returns the stack frames of a guest whose program is the ELF file `image`, innermost first,
/// without those that only report an exception or a panic. Empty if the image has no such
/// information.
pub fn frames(image: &[u8], memory: &impl GuestMemoryBackend, registers: &Registers) -> Vec<Frame> {
    let Some(program) = Program::parse(image) else { return Vec::new() };
    let word = |at: u64| memory.read_obj::<u64>(GuestAddress(at)).ok();
    let rsp = registers.general[7];
    // Ring 0 runs only service routines. The interrupt that entered one has stored its return
    // address.
    let interrupted = (registers.cs & 3 == 0)
        .then(|| Some((word(rsp)?, word(rsp.checked_add(8)?)?)))
        .flatten()
        .filter(|(_, cs)| cs & 3 == 3);
    let first = interrupted.map_or(registers.rip, |(rip, _)| rip);
    let mut frames = program.look_up(first, first);
    let mut pointer = registers.general[6];
    while frames.len() < MOST {
        let (Some(next), Some(address)) =
            (word(pointer), pointer.checked_add(8).and_then(word).filter(|at| program.has(*at)))
        else {
            break;
        };
        // A call returns to the next instruction; an exception is reported at its own.
        let reported = frames.last().is_some_and(|frame| frame.is(REPORTS_EXCEPTION));
        let at = if reported { address } else { address - 1 };
        frames.extend(program.look_up(at, address));
        if next == pointer {
            break;
        }
        pointer = next;
    }
    frames.truncate(MOST);
    let report = |frame: &Frame| frame.is(REPORTS_EXCEPTION) || frame.is(HANDLES_PANIC);
    match frames.iter().rposition(report) {
        Some(at) => frames.split_off(at + 1),
        None => frames,
    }
}

impl Frame {
    fn is(&self, name: &str) -> bool {
        self.function.as_deref().is_some_and(|function| function.ends_with(name))
    }
}

/// A program that can be searched by address.
struct Program<'a> {
    context: Option<Context<EndianSlice<'a, LittleEndian>>>,
    /// Start, size and name of each function, by start.
    functions: Vec<(u64, u64, String)>,
}

impl<'a> Program<'a> {
    fn parse(image: &'a [u8]) -> Option<Self> {
        let file = object::File::parse(image).ok()?;
        let mut functions: Vec<_> = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text)
            .filter_map(|symbol| {
                let name = demangle_auto(symbol.name().ok()?.into(), None).into_owned();
                Some((symbol.address(), symbol.size(), name))
            })
            .collect();
        functions.sort();
        let section = |id: SectionId| -> Result<&'a [u8], object::Error> {
            let section = file.section_by_name(id.name());
            section.map_or(Ok(&[][..]), |section| section.data())
        };
        let context = DwarfSections::load(section).ok().and_then(|sections| {
            let dwarf = sections.borrow(|data| EndianSlice::new(data, LittleEndian));
            Context::from_dwarf(dwarf).ok()
        });
        Some(Self { context, functions })
    }

    /// Returns the function that contains an address.
    fn function(&self, address: u64) -> Option<&str> {
        let at = self.functions.partition_point(|(start, ..)| *start <= address);
        let (start, size, name) = self.functions.get(at.checked_sub(1)?)?;
        // Labels of assembler have no size.
        (*size == 0 || address - start < *size).then_some(name.as_str())
    }

    fn has(&self, address: u64) -> bool {
        address > 0 && self.function(address - 1).is_some()
    }

    /// Returns the frames at `at`, including inlined ones, with `shown` as their address.
    fn look_up(&self, at: u64, shown: u64) -> Vec<Frame> {
        let mut found = Vec::new();
        if let Some(mut frames) =
            self.context.as_ref().and_then(|context| context.find_frames(at).skip_all_loads().ok())
        {
            while let Ok(Some(frame)) = frames.next() {
                let function = frame
                    .function
                    .and_then(|function| function.demangle().ok().map(|name| name.into_owned()));
                let line = frame.location.and_then(|at| Some((at.file?.to_owned(), at.line?)));
                found.push(Frame { address: shown, function, line });
            }
        }
        if found.is_empty() {
            found.push(Frame { address: shown, function: None, line: None });
        }
        // The outermost of these frames is the function in the symbol table.
        if let Some(last) = found.last_mut().filter(|frame| frame.function.is_none()) {
            last.function = self.function(at).map(str::to_owned);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::GuestMemoryMmap;

    fn memory() -> GuestMemoryMmap<()> {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1_0000)]).unwrap()
    }

    #[test]
    fn non_programs_have_no_functions() {
        assert_eq!(frames(b"", &memory(), &Registers::default()), []);
        assert_eq!(frames(b"\x7fELF but no more", &memory(), &Registers::default()), []);
    }

    #[test]
    fn walk_ends_with_any_memory() {
        // This test is itself a program, though not one that the guest runs.
        let image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let program = Program::parse(&image).unwrap();
        let (start, _, name) = program.functions.iter().find(|(_, size, _)| *size > 8).unwrap();
        let memory = memory();
        let mut registers = Registers { rip: start + 1, cs: 3, ..Registers::default() };
        // A frame that is its own caller, two that call each other, and one that leads nowhere.
        for (at, next) in [(0x100u64, 0x100u64), (0x200, 0x300), (0x300, 0x200), (0x400, u64::MAX)]
        {
            memory.write_obj(next, GuestAddress(at)).unwrap();
            memory.write_obj(start + 4, GuestAddress(at + 8)).unwrap();
        }
        for (pointer, least) in [(0, 1), (0x100, 2), (0x200, 3), (0x400, 2), (u64::MAX - 3, 1)] {
            registers.general[6] = pointer;
            let frames = frames(&image, &memory, &registers);
            assert!((least..=MOST).contains(&frames.len()), "{pointer:#x}: {frames:#?}");
        }
        let found = program.look_up(start + 1, start + 1);
        let outermost = found.last().unwrap().function.as_deref().unwrap_or_default();
        assert!(!outermost.is_empty() && !name.is_empty(), "{found:?}");
    }
}
