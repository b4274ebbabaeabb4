//! Explains in words why commands fail: which entry of which table, which bit, which rule.
//!
//! Tables are read again, bypassing the cache, so the explanation reflects their present content.

use tofu_abi::desc::{Command, Descriptor, MAX_MTU, MTU_UNIT};
use tofu_abi::frame::FRAME_ALIGN;
use tofu_abi::generation::Description;
use tofu_abi::regs::{CqsMode, CqsReg};
use tofu_abi::table::{
    MEMORY_BLOCK_ENTRY_SIZE, MemoryBlock, PAGE_ENTRY_SIZE, PageEntry, PageSize,
    STEERING_ENTRY_SIZE, Steering,
};
use tofu_abi::{Rcode, StagOffset};
use tofu_inspect::{Hex, Inspect, Said, Tree, Visit};

use crate::command::{CommandKind, Message};
use crate::cq::Cq;
use crate::memory::{Access, DmaMemory};
use crate::observe::format::{Address, Code};
use crate::translate::Tables;

/// Returns the reason why an address was refused with `rcode`, according to the present tables.
pub(crate) fn address(
    queue: &Cq,
    memory: &dyn DmaMemory,
    at: StagOffset,
    length: u32,
    access: Access,
    rcode: Rcode,
) -> String {
    if rcode.local() == Rcode::ALIGNMENT {
        return format!("offset {:#x} is no multiple of {length}", at.offset());
    }
    match Walk::of(&queue.tables, memory, at, length, access).end {
        Err((found, why)) if found == rcode.local() => why,
        Err((found, why)) => format!("the tables were changed since; now {found:?}: {why}"),
        Ok(()) => "the tables in memory were changed since, or before without a CACHE_FLUSH; now \
                   they lead to memory"
            .to_owned(),
    }
}

/// The reason why a command that was begun has failed.
pub(crate) fn failure(
    queue: &Cq,
    memory: &dyn DmaMemory,
    message: &Message,
    rcode: Rcode,
) -> String {
    let to = message.header1.target();
    let access = if message.kind == CommandKind::Put { Access::Read } else { Access::Write };
    match rcode {
        Rcode::TIMEOUT => {
            format!("no answer came from node {to}: the command or its answer was lost")
        }
        Rcode::LINK_DOWN => format!("a link on the way to node {to} is down, or its router is"),
        Rcode::NO_SUCH_NODE | Rcode::NO_SUCH_PATH => {
            format!("the machine has no way {:?} to node {to}", message.header1.path())
        }
        _ if rcode.is_local() && rcode != Rcode::STEERING_TABLE_DISABLED => {
            address(queue, memory, message.local, message.length, access, rcode)
        }
        Rcode::STEERING_TABLE_DISABLED if queue.tables.read(CqsReg::SteeringTableEnable) == 0 => {
            "STEERING_TABLE_ENABLE is 0".to_owned()
        }
        _ => format!("node {to} has refused it; its device/refused has the reason"),
    }
}

/// The reason why a descriptor was refused.
pub(crate) fn refusal(
    descriptor: &Descriptor,
    mode: CqsMode,
    description: &Description,
    rcode: Rcode,
) -> String {
    let (header1, header2) = (descriptor.header1(), descriptor.header2());
    let code = header1.command();
    let command = Command::from_code(code);
    match rcode {
        Rcode::UNDEFINED_COMMAND => format!("no command has the code {code:#x}"),
        Rcode::UNSUPPORTED_COMMAND => {
            let interconnect = description.interconnect;
            format!("{interconnect} has no command {code:#x} ({command:?})")
        }
        Rcode::NO_SUCH_NODE => {
            let (tni, tnis) = (header1.ri(), description.tnis);
            format!("the header names TNI {tni} or port {}, of {tnis} TNIs", header1.port())
        }
        Rcode::SUBNET => format!("MODE is {mode:?}: node {} is outside of that", header1.target()),
        Rcode::BAD_MTU => {
            let bytes = u32::from(header1.mtu()) * MTU_UNIT;
            format!("the mtu is {bytes} bytes; {MAX_MTU} are the most")
        }
        Rcode::BAD_LENGTH => {
            let length = header2.length();
            format!(
                "{command:?} of {length} bytes (header 2 is {:#x}): too many or too few",
                header2.0
            )
        }
        Rcode::NOT_PERMITTED => {
            format!("MODE is {mode:?}: packets need system, raw ones trp1_enable or trp2_enable")
        }
        Rcode::BAD_OPERATOR => format!("no operator has the code {:#x}", header1.mtu()),
        Rcode::ALIGNMENT => {
            let at = descriptor.packet_address();
            format!("the packet is at {at:#x}, which is no multiple of {FRAME_ALIGN}")
        }
        Rcode::PAYLOAD_ACCESS => {
            format!("there is no memory at {:#x}", descriptor.packet_address())
        }
        _ => rcode.to_string(),
    }
}

/// An entry of a table in memory.
#[derive(Clone, Copy)]
struct Entry<T> {
    index: u64,
    address: u64,
    value: T,
}

/// A walk from an STag and an offset to memory, as far as it gets.
pub(crate) struct Walk {
    at: StagOffset,
    length: u32,
    access: Access,
    steering: Option<Entry<Steering>>,
    stag_length: Option<u64>,
    block: Option<Entry<MemoryBlock>>,
    pages: Option<u64>,
    /// The last page that was examined.
    page: Option<Entry<PageEntry>>,
    /// The address of the first byte.
    memory: Option<u64>,
    /// The device's answer, and the reason.
    end: Result<(), (Rcode, String)>,
}

impl Walk {
    /// Walks from `at` on, page by page.
    pub(crate) fn of(
        tables: &Tables,
        memory: &dyn DmaMemory,
        at: StagOffset,
        length: u32,
        access: Access,
    ) -> Self {
        let mut walk = Self {
            at,
            length,
            access,
            steering: None,
            stag_length: None,
            block: None,
            pages: None,
            page: None,
            memory: None,
            end: Ok(()),
        };
        walk.end = walk.go(tables, memory);
        walk
    }

    fn go(&mut self, tables: &Tables, memory: &dyn DmaMemory) -> Result<(), (Rcode, String)> {
        let (stag, offset) = (u64::from(self.at.stag()), self.at.offset());
        let steering = Table::steering(tables, memory);
        let (address, raw, length) = steering.entry(
            stag,
            (Rcode::STEERING_TABLE_DISABLED, Rcode::STAG_RANGE, Rcode::STEERING_UNREADABLE),
        )?;
        let entry = Steering(raw);
        self.steering = Some(Entry { index: stag, address, value: entry });
        self.stag_length = Some(length);
        if !entry.enable() {
            return Err((Rcode::STAG_DISABLED, disabled("steering", stag, address, raw)));
        }
        let (block, size, pages) = self.walk_block(tables, memory, entry)?;
        if self.access.writes() && entry.readonly() {
            let why = format!(
                "steering entry {stag} is {:#x}: readonly (bit 6) is 1, and this is a write",
                entry.0
            );
            return Err((Rcode::READ_ONLY, why));
        }
        let beyond = format!(
            "offset {offset:#x} and {} bytes end beyond the STag, whose length (second word of \
             steering entry {stag}) is {length:#x}",
            self.length
        );
        if offset > length {
            return Err((Rcode::OFFSET_RANGE, beyond));
        }
        let within = u64::from(self.length).min(length - offset);
        let mut done = 0;
        while done < within {
            let start = entry.mbva() + offset + done;
            let n = (within - done).min(size.bytes() - (start & (size.bytes() - 1)));
            self.walk_page(memory, size, (start, n), pages, block)?;
            done += n;
        }
        if within < self.length.into() {
            return Err((Rcode::OFFSET_RANGE, beyond));
        }
        Ok(())
    }

    /// Reads the memory block of a steering entry; returns it with the size and number of its
    /// pages.
    fn walk_block(
        &mut self,
        tables: &Tables,
        memory: &dyn DmaMemory,
        entry: Steering,
    ) -> Result<(MemoryBlock, PageSize, u64), (Rcode, String)> {
        let block = Table::memory_block(tables, memory);
        let mbid = u64::from(entry.mbid());
        let (address, raw, pages) = block.entry(
            mbid,
            (
                Rcode::MEMORY_BLOCK_TABLE_DISABLED,
                Rcode::MEMORY_BLOCK_RANGE,
                Rcode::MEMORY_BLOCK_UNREADABLE,
            ),
        )?;
        let block = MemoryBlock(raw);
        self.block = Some(Entry { index: mbid, address, value: block });
        self.pages = Some(pages);
        if !block.enable() {
            return Err((
                Rcode::MEMORY_BLOCK_DISABLED,
                disabled("memory block", mbid, address, raw),
            ));
        }
        let Some(size) = PageSize::from_code(block.ps()) else {
            let why = format!(
                "memory block entry {mbid} at {address:#x} is {raw:#x}: its page size (bits 2:0) \
                 is {}, which is reserved",
                block.ps()
            );
            return Err((Rcode::BAD_PAGE_SIZE, why));
        };
        Ok((block, size, pages))
    }

    /// Walks through one page, for `n` bytes from `start` in the memory block on.
    fn walk_page(
        &mut self,
        memory: &dyn DmaMemory,
        size: PageSize,
        (start, n): (u64, u64),
        pages: u64,
        block: MemoryBlock,
    ) -> Result<(), (Rcode, String)> {
        let index = start >> size.bits();
        if index >= pages {
            let why = format!(
                "page {index} of {} bytes is beyond the memory block, which has {pages}",
                size.bytes()
            );
            return Err((Rcode::PAGE_RANGE, why));
        }
        let address = block.ipa() + index * PAGE_ENTRY_SIZE;
        let raw = memory.load(address).map_err(|_| {
            let why = format!("page entry {index} at {address:#x} is not in memory");
            (Rcode::PAGE_UNREADABLE, why)
        })?;
        let page = PageEntry(raw);
        self.page = Some(Entry { index, address, value: page });
        if !page.enable() {
            return Err((Rcode::PAGE_DISABLED, disabled("page", index, address, raw)));
        }
        let found = (page.ipa() >> size.bits() << size.bits()) + (start & (size.bytes() - 1));
        self.memory.get_or_insert(found);
        if !memory.contains(found, n as usize, self.access) {
            let access = if self.access.writes() { "written" } else { "read" };
            let why = format!(
                "page entry {index} at {address:#x} leads to {found:#x}, where there is no memory \
                 that may be {access}"
            );
            return Err((Rcode::PAYLOAD_ACCESS, why));
        }
        Ok(())
    }
}

impl Inspect for Walk {
    fn inspect(&self, visit: Visit<'_>) {
        fn entry<T: Copy + std::fmt::Debug + Into<u64>>(visit: Visit<'_>, entry: &Entry<T>) {
            visit.tree(|tree| {
                tree.add("index", &entry.index);
                tree.add("address", &Hex(entry.address));
                tree.add("value", &Hex(entry.value.into()));
                tree.add("means", &Said(format_args!("{:?}", entry.value)));
            });
        }
        visit.tree(|tree| {
            tree.add("at", &Address(self.at));
            if let Some(found) = &self.steering {
                tree.add_with("steering", |visit| entry(visit, found));
            }
            tree.add("stag_length", &self.stag_length.map(Hex));
            if let Some(found) = &self.block {
                tree.add_with("memory_block", |visit| entry(visit, found));
            }
            tree.add("pages", &self.pages);
            if let Some(found) = &self.page {
                tree.add_with("page", |visit| entry(visit, found));
            }
            tree.add("memory", &self.memory.map(Hex));
            match &self.end {
                Ok(()) => tree.add("result", &Code(Rcode::SUCCESS)),
                Err((rcode, why)) => {
                    tree.add("result", &Code(*rcode));
                    tree.add("why", why);
                }
            }
        });
    }
}

fn disabled(table: &str, index: u64, address: u64, raw: u64) -> String {
    format!("{table} entry {index} at {address:#x} is {raw:#x}: enable (bit 7) is 0")
}

/// Most entries of a table that are examined for debugging.
const SHOWN: u64 = 4096;

/// The entries of a queue's steering table that are enabled, as they are in memory.
pub(crate) fn stags(tree: &mut Tree<'_>, tables: &Tables, memory: &dyn DmaMemory) {
    for (index, raw, length) in Table::steering(tables, memory).entries() {
        let entry = Steering(raw);
        if entry.enable() {
            tree.add_with(index, |visit| {
                visit.tree(|tree| {
                    tree.add("readonly", &entry.readonly());
                    tree.add("block", &entry.mbid());
                    tree.add("from", &Hex(entry.mbva()));
                    tree.add("length", &Hex(length));
                });
            });
        }
    }
}

/// The same for its memory block table.
pub(crate) fn blocks(tree: &mut Tree<'_>, tables: &Tables, memory: &dyn DmaMemory) {
    for (index, raw, pages) in Table::memory_block(tables, memory).entries() {
        let entry = MemoryBlock(raw);
        if entry.enable() {
            tree.add_with(index, |visit| {
                visit.tree(|tree| {
                    tree.add("page_size", &PageSize::from_code(entry.ps()).map(PageSize::bytes));
                    tree.add("pages", &pages);
                    tree.add("page_table", &Hex(entry.ipa()));
                });
            });
        }
    }
}

/// Registers of a table: enable, address, and number of entries.
type Registers = [(CqsReg, &'static str); 3];

const STEERING: Registers = [
    (CqsReg::SteeringTableEnable, "STEERING_TABLE_ENABLE"),
    (CqsReg::SteeringTableIpa, "STEERING_TABLE_IPA"),
    (CqsReg::SteeringTableSize, "STEERING_TABLE_SIZE"),
];
const MEMORY_BLOCK: Registers = [
    (CqsReg::MemoryBlockTableEnable, "MEMORY_BLOCK_TABLE_ENABLE"),
    (CqsReg::MemoryBlockTableIpa, "MEMORY_BLOCK_TABLE_IPA"),
    (CqsReg::MemoryBlockTableSize, "MEMORY_BLOCK_TABLE_SIZE"),
];

struct Table<'a> {
    tables: &'a Tables,
    memory: &'a dyn DmaMemory,
    name: &'static str,
    registers: Registers,
    size: u64,
}

impl<'a> Table<'a> {
    fn steering(tables: &'a Tables, memory: &'a dyn DmaMemory) -> Self {
        let (name, registers, size) = ("steering", STEERING, STEERING_ENTRY_SIZE);
        Self { tables, memory, name, registers, size }
    }

    fn memory_block(tables: &'a Tables, memory: &'a dyn DmaMemory) -> Self {
        let (name, registers, size) = ("memory block", MEMORY_BLOCK, MEMORY_BLOCK_ENTRY_SIZE);
        Self { tables, memory, name, registers, size }
    }

    /// Index and words of all entries up to the first that cannot be read, at most [`SHOWN`].
    fn entries(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let codes = (Rcode::SUCCESS, Rcode::SUCCESS, Rcode::SUCCESS);
        (0..SHOWN).map_while(move |index| {
            let (_, raw, second) = self.entry(index, codes).ok()?;
            Some((index, raw, second))
        })
    }

    /// Address and two words of an entry. The codes are those of a table that is disabled, of an
    /// index beyond it, and of an entry that cannot be read.
    fn entry(
        &self,
        index: u64,
        (off, beyond, unreadable): (Rcode, Rcode, Rcode),
    ) -> Result<(u64, u64, u64), (Rcode, String)> {
        let Self { tables, memory, name, registers, size } = *self;
        let [enable, base, entries] = registers;
        if tables.read(enable.0) & 1 == 0 {
            return Err((off, format!("{} is 0", enable.1)));
        }
        let count = tables.read(entries.0);
        if index >= count {
            let why = format!("{name} entry {index} is beyond the table: {} is {count}", entries.1);
            return Err((beyond, why));
        }
        let from = tables.read(base.0);
        let address = index.checked_mul(size).and_then(|at| from.checked_add(at));
        let read = address.and_then(|at| {
            let end = at.checked_add(8)?;
            Some((at, memory.load(at).ok()?, memory.load(end).ok()?))
        });
        read.ok_or_else(|| {
            let why = format!(
                "{name} entry {index} is not in memory: {} is {from:#x}, entries have {size} bytes",
                base.1
            );
            (unreadable, why)
        })
    }
}
