//! The functions in which a driver has broken rules: from the addresses that QEMU's plugin has
//! found on the stack, by the module's symbols and the kernel's.
//!
//! The kernel has no frame pointers, so that any word on the stack may be a return address of a
//! call that has ended long ago. One belongs to the present calls if the instruction before it
//! calls the function below, or one whose address was only known when it ran.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use addr2line::demangle_auto;
use object::{Object, ObjectSection, ObjectSymbol, SectionIndex, SymbolKind};
use serde::{Serialize, Serializer};
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::regs::Register;
use tofu_icc::RegisterName;
use tofu_pace::breaks::{Access, Break, Breaks, Call};
use tofu_rules::Rule;
use tofu_ui::printable;

use crate::lines::{Information, Lines};
use crate::nodes::{NODES, Nodes};
use crate::subject::{LOADED, Subject};

/// The most functions of a stack.
const MOST: usize = 16;
/// The most times that a module was loaded whose addresses are kept.
const LOADS: usize = 64;
/// Kernel functions at which a stack ends: what called them says nothing about a driver.
const ENDS: [&str; 7] = [
    "__do_sys_",
    "__x64_sys_",
    "do_syscall_64",
    "x64_sys_call",
    "ret_from_fork",
    "asm_",
    "kthread",
];
/// Functions that call the one whose address is in a register.
const THUNKS: &str = "__x86_indirect_";

/// The code that has broken a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stack {
    /// Number of the node.
    pub node: u32,
    /// The name of the scene.
    pub scene: &'static str,
    /// The access that has broken the rule.
    pub access: String,
    /// The function that has made the access, and its callers.
    pub functions: Vec<Called>,
}

/// A function in a call stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// Its name with the offset in it, the line, and the module.
    pub says: String,
    /// The file of its source, and the line.
    pub at: Option<(String, u32)>,
}

impl Serialize for Called {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.says)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, scene, access, functions } = self;
        let functions = match &functions[..] {
            [] => "a program, or code without symbols".to_owned(),
            functions => {
                let names: Vec<_> = functions.iter().map(|called| called.says.as_str()).collect();
                names.join(" < ")
            }
        };
        write!(f, "node {node}, in {scene}, by a {access}: {functions}")
    }
}

/// Finds the code that has broken rules, on all nodes.
pub(crate) struct Stacks<'a> {
    breaks: &'a [Arc<Breaks>],
    /// Kernels as nodes have them: most have the same.
    kernels: Vec<Arc<Kernel>>,
    /// Which of them each node has, until it boots.
    of_nodes: Vec<Option<Arc<Kernel>>>,
}

/// The functions of a kernel.
struct Kernel {
    /// The first lines of its symbols, which say where it lies.
    head: String,
    /// Where they begin, and their names, in order.
    functions: Vec<(u64, String)>,
}

impl Kernel {
    /// Reads a kernel's symbols, other than those of modules.
    fn parse(head: String, symbols: &str) -> Self {
        let mut functions: Vec<_> = symbols.lines().filter_map(symbol).collect();
        functions.sort_by_key(|(begins, _)| *begins);
        Self { head, functions }
    }

    fn function(&self, address: u64) -> Option<Function> {
        let after = self.functions.partition_point(|(begins, _)| *begins <= address);
        let (begins, name) = self.functions.get(after.checked_sub(1)?)?;
        // Behind the last one there may be anything.
        let is_kernel = after < self.functions.len();
        is_kernel.then(|| Function { begins: *begins, name: name.clone(), module: false })
    }
}

/// A section of a module with code.
struct Section {
    index: SectionIndex,
    /// Functions: beginning, size and name, in order.
    functions: Vec<(u64, u64, String)>,
}

/// A function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    begins: u64,
    name: String,
    module: bool,
}

impl<'a> Stacks<'a> {
    pub(crate) fn new(breaks: &'a [Arc<Breaks>]) -> Self {
        Self { breaks, kernels: Vec::new(), of_nodes: vec![None; breaks.len()] }
    }

    /// Forgets what was found out about nodes that have booted since.
    pub(crate) fn restarted(&mut self) {
        self.of_nodes.fill(None);
    }

    /// The kernel of a node. It is read once, which takes a second.
    fn kernel(&mut self, node: u32, nodes: &Nodes) -> Option<Arc<Kernel>> {
        let known = self.of_nodes.get_mut(node as usize)?;
        if known.is_none() {
            let head = nodes.run(node, "uname -rv; head -n 4 /proc/kallsyms").ok()?.text;
            let same = self.kernels.iter().find(|kernel| kernel.head == head);
            let kernel = match same {
                Some(kernel) => Arc::clone(kernel),
                None => {
                    let symbols = nodes.read(node, "/proc/kallsyms").ok()?.text;
                    let kernel = Arc::new(Kernel::parse(head, &symbols));
                    self.kernels.push(Arc::clone(&kernel));
                    kernel
                }
            };
            *known = Some(kernel);
        }
        known.clone()
    }

    /// Drops what was found so far.
    pub(crate) fn skip(&self) {
        self.breaks.iter().for_each(|breaks| drop(breaks.take()));
    }

    /// The code that has broken these rules since the last call. Nodes that do not answer have
    /// none.
    pub(crate) fn take(
        &mut self,
        scene: &'static str,
        nodes: &Nodes,
        subject: &Subject,
        is_wanted: impl Fn(Rule) -> bool,
    ) -> Vec<(Rule, Stack)> {
        let mut found = Vec::new();
        for (node, breaks) in NODES.into_iter().zip(self.breaks) {
            let with_rule = |brk: Break| Some((*Rule::ALL.get(brk.rule)?, brk));
            let breaks = breaks.take().into_iter().filter_map(with_rule);
            let breaks: Vec<_> = breaks.filter(|(rule, _)| is_wanted(*rule)).collect();
            if breaks.is_empty() {
                continue;
            }
            let module = Module::find(node, nodes, subject);
            let lines = module.information.as_ref().and_then(Information::lines);
            let kernel = self.kernel(node, nodes);
            for (rule, brk) in breaks {
                let of_kernel = |address| kernel.as_ref()?.function(address);
                let functions = walk(&brk, |at| module.function(at).or_else(|| of_kernel(at)));
                let called = functions.iter().flat_map(|(function, at)| {
                    // A call returns to the next instruction, which may be of another line.
                    let of = if brk.instruction == Some(*at) { *at } else { at.wrapping_sub(1) };
                    module.called(function, *at, (lines.as_ref(), of))
                });
                let functions: Vec<_> = called.collect();
                let access = access_name(brk.access);
                found.push((rule, Stack { node, scene, access, functions }));
            }
        }
        found
    }
}

/// An access, for a report.
fn access_name(access: Access) -> String {
    let what = if access.is_write { "write to" } else { "read of" };
    let register = Register::decode(access.offset & !7);
    match register.filter(|_| access.region == REGISTER_BAR) {
        Some(register) => format!("{what} {}", RegisterName(register)),
        None if access.region == CONFIGURATION => {
            format!("{what} configuration space, {:#x}", access.offset)
        }
        None => format!("{what} BAR {}, {:#x}", access.region, access.offset),
    }
}

/// The number of configuration space among a device's regions.
const CONFIGURATION: u8 = 7;

/// A function of the kernel in a line of its symbols.
fn symbol(line: &str) -> Option<(u64, String)> {
    // A module's have its name behind them.
    let [address, kind, name] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return None;
    };
    let address = u64::from_str_radix(address, 16).ok()?;
    matches!(kind, "t" | "T" | "w" | "W").then(|| (address, printable(name)))
}

/// The functions that a break was in, and where.
fn walk(brk: &Break, function: impl Fn(u64) -> Option<Function>) -> Vec<(Function, u64)> {
    let mut frames: Vec<(Function, u64)> = Vec::new();
    if let Some(at) = brk.instruction
        && let Some(function) = function(at)
    {
        frames.push((function, at));
    }
    let mut rest = &brk.stack[..];
    while frames.len() < MOST {
        let last = frames.last().map(|(last, _)| last);
        if last.is_some_and(|last| ENDS.iter().any(|end| last.name.starts_with(end))) {
            break;
        }
        // A part of a function that is seldom run is jumped to.
        let last = last.filter(|last| !last.name.ends_with(".cold"));
        let calls = |place: &usize, is_direct: bool| match (rest[*place].call(), last) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(Call::Indirect), _) => !is_direct,
            (Some(Call::To(target)), Some(last)) if is_direct => target == last.begins,
            (Some(Call::To(target)), Some(last)) => function(target).is_some_and(|called| {
                // A function of the kernel that the module calls may have jumped to the last one.
                let may_jump = !last.module && !called.module;
                let is_module = || function(rest[*place].at - 1).is_some_and(|it| it.module);
                called.name.starts_with(THUNKS) || may_jump && is_module()
            }),
        };
        let place = |is_direct| (0..rest.len()).find(|place| calls(place, is_direct));
        let Some(place) = place(true).or_else(|| place(false)) else { break };
        let at = rest[place].at;
        rest = &rest[place + 1..];
        let Some(caller) = function(at - 1) else { break };
        frames.push((caller, at));
    }
    frames
}

/// The code of a module at the places where it was loaded.
struct Module {
    name: String,
    /// Its sections by name.
    sections: BTreeMap<String, Section>,
    /// Sections and their addresses, the latest ones first.
    loads: Vec<(String, u64)>,
    information: Option<Information>,
}

impl Module {
    /// The module as a node has it, or has had it.
    fn find(node: u32, nodes: &Nodes, subject: &Subject) -> Self {
        let name = subject.module().unwrap_or_default().to_owned();
        let file = subject.file().filter(|_| !name.is_empty());
        let sections = file.as_ref().map_or_else(BTreeMap::new, |(_, bytes)| sections(bytes));
        let information = file.and_then(|(_, bytes)| Information::parse(bytes));
        // It may be loading at this moment.
        let script =
            format!("cat {LOADED} 2>/dev/null; grep -s . /sys/module/{name}/sections/.*text*");
        let loads = match nodes.run(node, &script) {
            Ok(said) if !sections.is_empty() => loads(&said.text),
            _ => Vec::new(),
        };
        Self { name, sections, loads, information }
    }

    /// The function at an address, with the place of the address in the module's file.
    fn find_function(&self, address: u64) -> Option<(Function, (SectionIndex, u64))> {
        self.loads.iter().find_map(|(section, base)| {
            let Section { index, functions } = self.sections.get(section)?;
            let offset = address.checked_sub(*base)?;
            let at = functions.partition_point(|(start, ..)| *start <= offset);
            let (start, size, name) = functions.get(at.checked_sub(1)?)?;
            let function = Function { begins: base + start, name: name.clone(), module: true };
            (offset - start < *size).then_some((function, (*index, offset)))
        })
    }

    fn function(&self, address: u64) -> Option<Function> {
        self.find_function(address).map(|(function, _)| function)
    }

    /// A function for a report, with the offset in it, after those that were compiled into it
    /// where `of` is.
    fn called(
        &self,
        function: &Function,
        at: u64,
        (lines, of): (Option<&Lines<'_>>, u64),
    ) -> Vec<Called> {
        let Function { begins, name, module } = function;
        let own = format!("{name}+{:#x}", at.wrapping_sub(*begins));
        if !module {
            return vec![Called { says: own, at: None }];
        }
        let place = self.find_function(of).map(|(_, place)| place);
        let found = lines.zip(place).map(|(lines, (section, offset))| lines.find(section, offset));
        let mut found = found.unwrap_or_default();
        let last = found.pop().and_then(|line| line.at);
        let called = |name: &str, at: Option<(String, u32)>| {
            let line = at.as_ref().map(|(file, line)| format!(" ({file}:{line})"));
            Called { says: format!("{name}{} [{}]", line.unwrap_or_default(), self.name), at }
        };
        let inner = found.into_iter().filter_map(|line| Some(called(&line.function?, line.at)));
        let mut all: Vec<_> = inner.collect();
        all.push(called(&own, last));
        all
    }
}

/// The sections of a module's file that have functions.
fn sections(bytes: &[u8]) -> BTreeMap<String, Section> {
    let mut all = BTreeMap::<String, Section>::new();
    let Ok(file) = object::File::parse(bytes) else { return all };
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let Some(section) = section.filter(|_| symbol.size() > 0) else { continue };
        if let (Ok(within), Ok(name)) = (section.name(), symbol.name()) {
            let name = printable(&demangle_auto(name.into(), None));
            let function = (symbol.address(), symbol.size(), name);
            let empty = || Section { index: section.index(), functions: Vec::new() };
            all.entry(within.to_owned()).or_insert_with(empty).functions.push(function);
        }
    }
    all.values_mut().for_each(|section| section.functions.sort());
    all
}

/// Sections and their addresses, the latest ones first.
fn loads(text: &str) -> Vec<(String, u64)> {
    let load = |line: &str| {
        let (path, address) = line.rsplit_once(":0x")?;
        let section = path.rsplit_once("/sections/")?.1;
        Some((section.to_owned(), u64::from_str_radix(address, 16).ok()?))
    };
    text.lines().rev().filter_map(load).take(LOADS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_pace::breaks::Address;

    const ACCESS: Access = Access { region: 0, offset: 0, is_write: true };

    /// An address after a call of a function.
    fn after_call(at: u64, target: u64) -> Address {
        let mut code = [0x90, 0x90, 0x90, 0xe8, 0, 0, 0, 0];
        code[4..].copy_from_slice(&(target.wrapping_sub(at) as u32).to_le_bytes());
        Address { at, code }
    }

    fn after_indirect_call(at: u64) -> Address {
        Address { at, code: [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0] }
    }

    /// Functions at multiples of 0x100.
    fn function(address: u64) -> Option<Function> {
        let names = [
            "open",
            "probe",
            "stale",
            "core",
            "__x86_indirect_thunk_rax",
            "do_syscall_64",
            "pci_clear_master",
            "__pci_set_master",
        ];
        let name = (*names.get(usize::try_from(address >> 8).ok()?)?).to_owned();
        let module = matches!(name.as_str(), "open" | "probe");
        Some(Function { begins: address & !0xff, name, module })
    }

    fn names(instruction: Option<u64>, stack: Vec<Address>) -> Vec<String> {
        let brk = Break { rule: 0, access: ACCESS, instruction, stack };
        walk(&brk, function).into_iter().map(|(function, _)| function.name).collect()
    }

    #[test]
    fn stale_addresses_are_passed_over() {
        let stack = vec![
            after_call(0x250, 0x300),
            after_call(0x150, 0),
            after_call(0x350, 0x400),
            after_indirect_call(0x550),
            after_indirect_call(0x350),
        ];
        assert_eq!(names(Some(0x10), stack), ["open", "probe", "core", "do_syscall_64"]);
    }

    #[test]
    fn unknown_instruction_begins_with_the_first_call() {
        let stack = vec![after_call(0x150, 0x600), after_indirect_call(0x350)];
        assert_eq!(names(None, stack), ["probe", "core"]);
        assert_eq!(names(Some(0x1000), Vec::new()), [""; 0]);
    }

    #[test]
    fn module_is_seen_behind_a_jump() {
        // probe calls pci_clear_master, which jumps to __pci_set_master.
        let stack = vec![after_call(0x250, 0x300), after_call(0x150, 0x600)];
        assert_eq!(names(Some(0x710), stack), ["__pci_set_master", "probe"]);
    }

    #[test]
    fn functions_of_the_kernel_are_known() {
        let symbols = "ffffffff81000200 t probe\nffffffff81000100 T open\n\
                       ffffffff81000180 d data\nffffffffc0000000 t put\t[first_put]\n\
                       ffffffff81000300 T _etext\nnonsense\n";
        let kernel = Kernel::parse(String::new(), symbols);
        let name = |address| kernel.function(address).map(|found| found.name);
        assert_eq!(name(0xffff_ffff_8100_01ff).as_deref(), Some("open"));
        assert_eq!(name(0xffff_ffff_8100_0200).as_deref(), Some("probe"));
        assert_eq!(name(0xffff_ffff_8100_0300), None);
        assert_eq!(name(0xffff_ffff_8100_00ff), None);
    }

    #[test]
    fn recursion_ends() {
        let stack = vec![after_call(0x50, 0); 64];
        assert_eq!(names(Some(0x10), stack).len(), MOST);
    }

    #[test]
    fn module_is_found_where_it_was_loaded_last() {
        let functions = vec![(0x10, 0x20, "probe".to_owned())];
        let section = Section { index: SectionIndex(1), functions };
        let sections = BTreeMap::from([(".text".to_owned(), section)]);
        let text = "/sys/module/x/sections/.text:0xffffffffc0001000\nnonsense\n\
                    /sys/module/x/sections/.text:0xffffffffc0000ff8\n";
        let (name, loads, information) = ("x".into(), loads(text), None);
        let module = Module { name, sections, loads, information };
        let at = |address| {
            let function = module.function(address)?;
            let called = module.called(&function, address, (None, address));
            called.into_iter().map(|called| called.says).reduce(|all, more| all + " < " + &more)
        };
        assert_eq!(at(0xffff_ffff_c000_1018).as_deref(), Some("probe+0x10 [x]"));
        assert_eq!(at(0xffff_ffff_c000_1038), None);
    }

    #[test]
    fn accesses_have_the_names_of_registers() {
        let access = |region, offset| access_name(Access { region, offset, ..ACCESS });
        assert_eq!(access(0, 0), "write to TNI 0 CQ 0 TOQ_DIRECT_DESCRIPTOR");
        assert_eq!(access(7, 4), "write to configuration space, 0x4");
        assert_eq!(access(2, 16), "write to BAR 2, 0x10");
    }
}
