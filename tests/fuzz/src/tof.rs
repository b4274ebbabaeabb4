//! Any arguments of the ioctls of `/proc/tofu`, through the code by which the kernel driver checks
//! them (`tofu_abi::tof`). What it does with them afterwards is tested in nodes, by the driver's
//! own tests, one of which makes random calls.
//!
//! Accepted arguments name queues, gates, ports, registers and nodes that exist, and an STag's
//! entries lie in its memory.

use arbitrary::{Result, Unstructured};
use tofu_abi::generation::Description;
use tofu_abi::regs::{BAR0_SIZE, CqsMode, NUM_CQ, NUM_TNI};
use tofu_abi::table::PageSize;
use tofu_abi::tof::{
    Addr, AllocStag, CqStat, EnableBch, InitCq, LinkdownItem, LoadRegister, LoadResource,
    NotifyLinkdown, PortStat, RegUser, Resource, SPECIAL_STAGS, SetBg, Span, Subnet, VERSION,
    pages_around,
};
use tofu_abi::topology::Shape;
use tofu_abi::{Generation, StagOffset};

/// Sizes of the processor's pages.
const PAGES: [u64; 3] = [1 << 12, 1 << 14, 1 << 16];

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    while !u.is_empty() && call(&mut u).is_ok() {}
}

fn call(u: &mut Unstructured<'_>) -> Result<()> {
    let choice: u8 = u.arbitrary()?;
    let page = PAGES[usize::from(choice >> 4) % PAGES.len()];
    let generation = Generation::ALL[usize::from(choice >> 6) % Generation::ALL.len()];
    let description = generation.description();
    match choice & 15 {
        0 => init_cq(u, page),
        1..=3 => alloc_stag(u, page),
        4..=6 => enable_bch(u, description),
        7 => reg_user(u, description),
        8 => notify_linkdown(u),
        9 => counters(u, description),
        10 => load_register(u),
        _ => load_resource(u),
    }
}

fn init_cq(u: &mut Unstructured<'_>, page: u64) -> Result<()> {
    let [session_mode, toq_size, mrq_size, num_stag, tcq_cinj, mrq_cinj] = u.arbitrary()?;
    let (other, toq_mem): (u8, u64) = u.arbitrary()?;
    let version = if other == 1 { u.arbitrary()? } else { VERSION };
    let rings = InitCq { toq_mem, ..InitCq::default() };
    let a =
        InitCq { version, session_mode, toq_size, mrq_size, num_stag, tcq_cinj, mrq_cinj, ..rings };
    if let Some(sizes) = a.sizes() {
        for entries in [sizes.toq, sizes.mrq] {
            assert!(entries.is_power_of_two() && (1 << 11..=1 << 21).contains(&entries));
            pages_fit(toq_mem, u64::from(entries) * 32, page);
        }
        assert!([1 << 13, 1 << 14, 1 << 15].contains(&sizes.stags), "{sizes:?}");
    }
    Ok(())
}

/// Pages around memory hold it.
fn pages_fit(addr: u64, len: u64, page: u64) {
    if let Some((start, end)) = pages_around(addr, len, page) {
        assert!(start % page == 0 && end % page == 0 && start <= addr && addr + len <= end);
        assert!(addr - start < page && end - (addr + len) < page && i64::try_from(end).is_ok());
    }
}

fn alloc_stag(u: &mut Unstructured<'_>, page: u64) -> Result<()> {
    // Flags and lengths mostly as programs have them.
    let (kind, bits): (u8, u8) = u.arbitrary()?;
    let flags = if kind & 1 == 0 { u32::from(bits & 3) } else { u.arbitrary()? };
    let len = u.arbitrary::<u64>()? >> (bits >> 2);
    let a = AllocStag { flags, stag: u.arbitrary()?, offset: 0, va: u.arbitrary()?, len };
    let (Some(wanted), Some(span)) = (a.wanted(), Span::new(&a, page)) else { return Ok(()) };
    pages_fit(a.va, a.len, page);
    let (start, end) = span.range();
    // A table for the largest pinned memory, in the device's smallest pages, must be possible.
    assert!(start < end && end - span.first(false) <= 1 << 40, "{span:?}");
    let stag = wanted.unwrap_or(SPECIAL_STAGS);
    assert!(wanted.is_none_or(|stag| stag < SPECIAL_STAGS));
    let offset = span.offset(stag);
    assert_eq!(StagOffset::new(tofu_abi::CqId::KERNEL, stag, offset).offset(), offset);
    for is_range in [false, true] {
        let first = span.first(is_range);
        let size = if is_range { span.range_page() } else { PageSize::Size4K };
        // The device's table does not begin after the STag, whose start the entry has in units of
        // 256 bytes.
        let mbva = span.origin(stag).checked_sub(first).expect("the table holds the memory");
        assert!(first % size.bytes() == 0 && first <= start && mbva % 256 == 0);
        let bytes = (end - first).checked_sub(mbva).expect("and what the STag names");
        assert!(offset < bytes && offset + a.len <= bytes, "{span:?}");
        // In units of 64 KiB.
        let told = span.user_entry(is_range) ^ span.origin(SPECIAL_STAGS) >> 16;
        assert_eq!(told & ((1 << 36) - 1), 0, "{span:?}");
    }
    assert!(span.serves(&span));
    Ok(())
}

fn enable_bch(u: &mut Unstructured<'_>, description: &Description) -> Result<()> {
    let (addr, bseq, num) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    if let Some(gates) = (EnableBch { addr, bseq, num, bgs: 0 }).gates(description) {
        assert!(addr % 256 == 0 && addr > 0 && bseq >> 24 == 0 && gates <= 6 * 64);
    }
    let subnet = CqsMode(u.arbitrary()?);
    let number = |u: &mut Unstructured<'_>| -> Result<i32> {
        let byte: u8 = u.arbitrary()?;
        // Occasionally one that is far away.
        Ok(if byte == 0x80 { u.arbitrary()? } else { i32::from(byte as i8) })
    };
    let addr = |u: &mut Unstructured<'_>| -> Result<Addr> {
        let [pa, pb, pc, x, y, z, a, b, c] = u.arbitrary()?;
        Ok(Addr { pa, pb, pc, x, y, z, a, b, c })
    };
    let set = SetBg {
        tni: number(u)?,
        gate: number(u)?,
        source_lgate: number(u)?,
        source_raddr: addr(u)?,
        source_rtni: number(u)?,
        source_rgate: number(u)?,
        dest_lgate: number(u)?,
        dest_raddr: addr(u)?,
        dest_rtni: number(u)?,
        dest_rgate: number(u)?,
        ..SetBg::default()
    };
    let barrier = &description.barrier;
    if let Some((tni, bg)) = set.id(description) {
        assert!(tni.get() < barrier.tnis && bg.get() < barrier.gates);
    }
    if let Some(links) = set.links(subnet, description) {
        assert_eq!(links.mask.sig_recv(), set.source_lgate < 0);
        assert_eq!(links.mask.tlp_send(), set.dest_rgate < 0);
        assert!(links.local.recv() < barrier.gates && links.local.send() < barrier.gates);
        let to = tofu_abi::barrier::BgAddress(links.remote.send().into());
        assert!(Shape::LARGEST.contains(to.coords()) && to.tni() < barrier.tnis);
        let node = to.coords();
        assert!(links.mask.tlp_send() || subnet.subnet_allows(node.x, node.y, node.z));
    }
    Ok(())
}

fn reg_user(u: &mut Unstructured<'_>, description: &Description) -> Result<()> {
    let given: [u64; NUM_TNI] = u.arbitrary()?;
    let (known, there) = (RegUser::bg_mask(description), description.user_gates());
    if let Some(masks) = RegUser::masks(given, known, there) {
        assert!(masks.iter().zip(there).all(|(mask, there)| mask & !there == 0));
    }
    let subnet = Subnet { parts: u.arbitrary()?, ..Subnet::default() };
    if let Some(mode) = subnet.mode() {
        assert_eq!(tofu_abi::Subnet::new(subnet.parts).map(tofu_abi::Subnet::mode), Some(mode));
        assert!(!mode.system(), "only the kernel's queues send system packets");
    }
    Ok(())
}

fn notify_linkdown(u: &mut Unstructured<'_>) -> Result<()> {
    let a = NotifyLinkdown { num: u.arbitrary()?, ..NotifyLinkdown::default() };
    assert!(a.count().is_none_or(|count| count <= 4096));
    let ([x, y, z, a, b, c], ports) = u.arbitrary()?;
    if let Some(node) = (LinkdownItem { x, y, z, a, b, c, ports }).node() {
        assert!(Shape::LARGEST.contains(node) && ports < 1 << 10);
    }
    Ok(())
}

fn counters(u: &mut Unstructured<'_>, description: &Description) -> Result<()> {
    let port_no = u.arbitrary()?;
    let port = PortStat { port_no, ..PortStat::default() }.port();
    assert_eq!(port.map(|port| port.index() as i32 + 1), Some(port_no).filter(|_| port.is_some()));
    let (tni, cqid) = u.arbitrary()?;
    if let Some((tni, cq)) = (CqStat { tni, cqid, ..CqStat::default() }).queue(description) {
        assert!(description.has_tni(tni) && description.has_cq(cq));
    }
    Ok(())
}

fn load_register(u: &mut Unstructured<'_>) -> Result<()> {
    let (near, pa, len): (bool, u64, u64) = u.arbitrary()?;
    let pa = if near { 0x4000_0000 + pa % (2 * BAR0_SIZE) } else { pa };
    if let Some(range) = (LoadRegister { pa, len, buf: 0 }).range() {
        assert!(range.start % 8 == 0 && range.end % 8 == 0 && range.end <= BAR0_SIZE);
    }
    Ok(())
}

fn load_resource(u: &mut Unstructured<'_>) -> Result<()> {
    let rsc_id = u64::from(u.arbitrary::<u16>()?);
    let a = LoadResource { rsc_id, len: u.arbitrary()?, ..LoadResource::default() };
    if let Some(Resource::Ring { queue, .. } | Resource::Table { queue, .. }) = a.resource() {
        assert!(queue < NUM_TNI * NUM_CQ && a.len <= 16 << 20);
    }
    Ok(())
}
