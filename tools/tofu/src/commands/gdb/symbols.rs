//! The names of a kernel's functions and variables, as an ELF file for debuggers.

use tofu_image::Arch;

/// Numbers of the ELF format (gABI, chapters 4 and 5).
const EXECUTABLE: u16 = 2;
const NOBITS: u32 = 8;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const ALLOC_EXEC: u64 = 2 | 4;
const GLOBAL: u8 = 1 << 4;
const OBJECT: u8 = 1;
const FUNC: u8 = 2;
/// Sizes of a file's header, a section's header, and a symbol, in bytes.
const HEADER: u64 = 64;
const SECTION: u64 = 64;
const SYMBOL: u64 = 24;
/// The lowest address of kernels, on x86-64 and arm64.
const KERNEL: u64 = 1 << 63;

/// A symbol of `/proc/kallsyms`: address, whether it is a function, name.
type Symbol<'a> = (u64, bool, &'a str);

/// A line of `/proc/kallsyms`, if it is useful.
fn symbol(line: &str) -> Option<Symbol<'_>> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    let name = words.next()?;
    // Per-CPU variables have only offsets; the others are assemblers' marks.
    let useful = address >= KERNEL && !name.starts_with(['.', '$']);
    let function = matches!(kind, "t" | "T" | "w" | "W");
    useful.then_some((address, function, name))
}

/// An ELF file with only symbols, made from a `/proc/kallsyms`; `None` if that has none, as for
/// users that may not know addresses.
pub(super) fn elf(list: &[u8], arch: Arch) -> Option<Vec<u8>> {
    let list = String::from_utf8_lossy(list);
    let symbols: Vec<_> = list.lines().filter_map(symbol).collect();
    let first = symbols.iter().map(|symbol| symbol.0).min()?;
    let last = symbols.iter().map(|symbol| symbol.0).max()?;
    let mut names = vec![0];
    let mut table = vec![0; SYMBOL as usize];
    for (address, function, name) in symbols {
        let kind = GLOBAL | if function { FUNC } else { OBJECT };
        table.extend((names.len() as u32).to_le_bytes());
        table.extend([kind, 0]);
        // The section of number 1.
        table.extend(1_u16.to_le_bytes());
        table.extend(address.to_le_bytes());
        table.extend(0_u64.to_le_bytes());
        names.extend(name.as_bytes());
        names.push(0);
    }
    let sections = b"\0.text\0.symtab\0.strtab\0";
    let table_at = HEADER + 4 * SECTION;
    let names_at = table_at + table.len() as u64;
    // The sections' own names come last, in the same section.
    let section_names = names.len() as u32;
    names.extend(sections);
    let mut file = Vec::with_capacity((names_at as usize) + names.len());
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend([EXECUTABLE, arch.elf_number()].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    // Entry, program headers, section headers.
    file.extend([0, 0, HEADER].map(u64::to_le_bytes).concat());
    file.extend(0_u32.to_le_bytes());
    file.extend([HEADER as u16, 0, 0, SECTION as u16, 4, 3].map(u16::to_le_bytes).concat());
    file.extend([0; SECTION as usize]);
    let section = |name: u32, kind: u32, words: [u64; 4], link: u32, info: u32, entry: u64| {
        let mut header = Vec::new();
        header.extend([section_names + name, kind].map(u32::to_le_bytes).concat());
        header.extend(words.map(u64::to_le_bytes).concat());
        header.extend([link, info].map(u32::to_le_bytes).concat());
        header.extend([1, entry].map(u64::to_le_bytes).concat());
        header
    };
    // Flags, address, place in the file, size.
    let text = [ALLOC_EXEC, first, table_at, last - first + 1];
    file.extend(section(1, NOBITS, text, 0, 0, 0));
    file.extend(section(7, SYMTAB, [0, 0, table_at, table.len() as u64], 3, 1, SYMBOL));
    file.extend(section(15, STRTAB, [0, 0, names_at, names.len() as u64], 0, 0, 0));
    file.extend(table);
    file.extend(names);
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_use_are_told_from_others() {
        let line = "ffffffffc0401010 t tofu_xmit\t[tofu]";
        assert_eq!(symbol(line), Some((0xffff_ffff_c040_1010, true, "tofu_xmit")));
        let line = "ffffffff82000000 D jiffies";
        assert_eq!(symbol(line), Some((0xffff_ffff_8200_0000, false, "jiffies")));
        for line in ["0000000000000000 A fixed_percpu_data", "ffffffffc0401000 t .Ltmp0", "x", ""] {
            assert_eq!(symbol(line), None, "{line}");
        }
    }

    #[test]
    fn file_has_symbols_at_their_addresses() {
        let list = "ffffffff81000000 T _text\nffffffffc0401010 t tofu_xmit\t[tofu]\n";
        let file = elf(list.as_bytes(), Arch::X86_64).unwrap();
        let table_at = (HEADER + 4 * SECTION) as usize;
        assert_eq!(&file[..4], b"\x7fELF");
        let second = &file[table_at + 2 * SYMBOL as usize..];
        assert_eq!(second[8..16], 0xffff_ffff_c040_1010_u64.to_le_bytes());
        let names_at = table_at + 3 * SYMBOL as usize;
        let name = u32::from_le_bytes(second[..4].try_into().unwrap()) as usize;
        assert!(file[names_at + name..].starts_with(b"tofu_xmit\0"));
    }

    #[test]
    fn without_addresses_there_is_no_file() {
        for list in ["\u{fffd} no list", "", "0000000000000000 T _text\n"] {
            assert_eq!(elf(list.as_bytes(), Arch::X86_64), None, "{list}");
        }
    }
}
