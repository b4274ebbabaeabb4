//! The provider's offer: `fi_getinfo`.

use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use super::abi::{self, DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use super::object::guard;
use crate::core::EAGER;
use crate::tofucom;

/// The name with which programs select the provider.
pub(super) const NAME: &CStr = c"tofu";
/// libfabric's version of the interface: as new as any, because it ignores providers that are older
/// than a program.
pub(super) const INTERFACE: u32 = 2 << 16 | 99;
/// Bytes of an address: the ID of a queue, and a number of the endpoint's start.
pub(super) const ADDRESS: usize = 16;
/// The format of addresses: one of our own.
const FORMAT: u32 = 1 << 31 | 0x746f;
/// The longest message whose memory the program may reuse immediately.
pub(super) const MOST_INJECTED: usize = 4096;
/// Pieces of memory of an operation.
pub(super) const PIECES: usize = 4;
/// The longest message.
pub(super) const LONGEST: usize = 1 << 38;

/// Capabilities of messages.
const MESSAGES: u64 = abi::MSG | abi::TAGGED | abi::SEND | abi::RECV;
/// Capabilities of accesses to regions: those to peers' and those of peers.
const OWN: u64 = abi::READ | abi::WRITE;
const PEERS: u64 = abi::REMOTE_READ | abi::REMOTE_WRITE;
const ACCESSES: u64 = abi::RMA | abi::ATOMIC;
const CAPS: u64 = MESSAGES
    | ACCESSES
    | OWN
    | PEERS
    | abi::RMA_EVENT
    | abi::MULTI_RECV
    | abi::DIRECTED_RECV
    | abi::SOURCE
    | abi::LOCAL_COMM
    | abi::REMOTE_COMM;
/// The capabilities for a program that requests none. mpich uses all that it finds. Atomic
/// operations are left out: mpich's own are messages that the target serves, as they would be here,
/// and they are consistent with a process's operations on its own window.
const DEFAULT: u64 = CAPS & !abi::ATOMIC & !abi::RMA_EVENT;
const TX_CAPS: u64 = abi::MSG | abi::TAGGED | abi::SEND | ACCESSES | OWN;
const RX_CAPS: u64 = CAPS & !abi::SEND & !OWN & !abi::LOCAL_COMM & !abi::REMOTE_COMM;
const DOMAIN_CAPS: u64 = abi::LOCAL_COMM | abi::REMOTE_COMM;
/// Sends are in order, and so are accesses that travel through slots.
const ORDER: u64 = abi::ORDER_SAS | abi::ORDER_ACCESSES;
/// Flags of sends that can be the default. A send through slots completes when the message is in
/// the memory of the receiver's endpoint. A send that the receiver reads completes when it has been
/// read.
const TX_FLAGS: u64 = abi::COMPLETION
    | abi::INJECT
    | abi::INJECT_COMPLETE
    | abi::TRANSMIT_COMPLETE
    | abi::DELIVERY_COMPLETE;
const RX_FLAGS: u64 = abi::COMPLETION | abi::MULTI_RECV;

/// Returns true if the process may have a device. This must be fast, because libfabric calls it in
/// every program that loads it.
fn may_have_device() -> bool {
    env::var_os("TOFU_PROVIDER").is_some() || env::var_os("TOFU_RANK").is_some()
}

/// `fi_getinfo`. There are no names of peers, so that a node or a service of one is refused. Those
/// of the endpoint itself make no difference.
pub(super) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int {
    guard(abi::NO_DATA, || {
        // SAFETY: guaranteed by the caller.
        let hints = unsafe { hints.as_ref() };
        // SAFETY: guaranteed by the caller.
        let fits = hints.is_none_or(|hints| unsafe { fits(hints) });
        let names_peer = flags & abi::SOURCE == 0 && !(node.is_null() && service.is_null());
        let fits = fits && !names_peer;
        if info.is_null() || !fits || !may_have_device() || !tofucom::is_there() {
            return abi::NO_DATA;
        }
        // SAFETY: the pointer is good.
        match unsafe { offer(version, hints) } {
            Some(offered) => {
                // SAFETY: the pointer is good.
                unsafe { info.write(offered) };
                0
            }
            None => abi::NO_MEMORY,
        }
    })
}

/// Returns whether a name is that of the provider, or none.
///
/// # Safety
///
/// The name is null or a string.
unsafe fn is_named(name: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    name.is_null() || unsafe { CStr::from_ptr(name) } == NAME
}

/// Returns true if the provider supports the request.
///
/// # Safety
///
/// The hints and what they point to are good.
unsafe fn fits(hints: &Info) -> bool {
    // SAFETY: guaranteed by the caller.
    let (tx, rx, ep, domain, fabric) = unsafe {
        (
            hints.tx_attr.as_ref(),
            hints.rx_attr.as_ref(),
            hints.ep_attr.as_ref(),
            hints.domain_attr.as_ref(),
            hints.fabric_attr.as_ref(),
        )
    };
    let order = |wanted: u64| wanted & !ORDER == 0;
    let tx = tx.is_none_or(|tx| {
        tx.caps & !(TX_CAPS | CAPS) == 0
            && tx.op_flags & !TX_FLAGS == 0
            && order(tx.msg_order)
            && tx.inject_size <= MOST_INJECTED
            && tx.iov_limit <= PIECES
            && tx.rma_iov_limit <= 1
    });
    let rx = rx.is_none_or(|rx| {
        rx.caps & !CAPS == 0
            && rx.op_flags & !RX_FLAGS == 0
            && order(rx.msg_order)
            && rx.iov_limit <= PIECES
    });
    let ep = ep.is_none_or(|ep| {
        [0, abi::EP_RDM].contains(&ep.kind)
            && [0, FORMAT].contains(&ep.protocol)
            && ep.max_msg_size <= LONGEST
            && [ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size]
                .iter()
                .all(|size| *size <= EAGER)
            && ep.msg_prefix_size == 0
            && ep.tx_ctx_cnt <= 1
            && ep.rx_ctx_cnt <= 1
            && ep.auth_key_size == 0
    });
    let domain = domain.is_none_or(|domain| {
        // SAFETY: guaranteed by the caller.
        (unsafe { is_named(domain.name) })
            && domain.data_progress != abi::PROGRESS_AUTO
            && domain.cq_data_size <= 8
            && domain.auth_key_size == 0
            && domain.caps & !DOMAIN_CAPS == 0
    });
    // SAFETY: guaranteed by the caller.
    let fabric = fabric.is_none_or(|fabric| unsafe { is_named(fabric.name) });
    let format = [0, FORMAT].contains(&hints.addr_format);
    hints.caps & !CAPS == 0 && format && tx && rx && ep && domain && fabric
}

/// Allocates a zeroed structure as libfabric does, which frees it. There is room for the fields
/// that newer versions have at the end.
fn zeroed<T>() -> Option<*mut T> {
    // SAFETY: no pointer is used.
    let memory = unsafe { libc::calloc(1, size_of::<T>().next_multiple_of(64) + 256) };
    (!memory.is_null()).then_some(memory.cast())
}

/// Makes the offer.
///
/// # Safety
///
/// The hints and what they point to are good.
unsafe fn offer(version: u32, hints: Option<&Info>) -> Option<*mut Info> {
    let info = zeroed::<Info>()?;
    let (tx, rx, ep) = (zeroed::<TxAttr>()?, zeroed::<RxAttr>()?, zeroed::<EpAttr>()?);
    let (domain, fabric) = (zeroed::<DomainAttr>()?, zeroed::<FabricAttr>()?);
    let wanted = hints.map_or(0, |hints| hints.caps);
    let caps = if wanted == 0 { DEFAULT } else { wanted | added(wanted) };
    // SAFETY: new memory, and hints that are good.
    unsafe {
        describe_contexts(hints, caps, tx, rx);
        let tag_format = hints.and_then(|hints| Some(hints.ep_attr.as_ref()?.mem_tag_format));
        *ep = EpAttr {
            kind: abi::EP_RDM,
            protocol: FORMAT,
            protocol_version: 1,
            max_msg_size: LONGEST,
            max_order_raw_size: EAGER,
            max_order_war_size: EAGER,
            max_order_waw_size: EAGER,
            mem_tag_format: tag_format.filter(|format| *format != 0).unwrap_or(TAG_FORMAT),
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            ..ep.read()
        };
        describe_domain(version, hints, domain);
        *fabric = FabricAttr {
            name: libc::strdup(NAME.as_ptr()),
            prov_version: 1 << 16,
            api_version: INTERFACE,
            ..fabric.read()
        };
        *info = Info {
            next: ptr::null_mut(),
            caps,
            addr_format: FORMAT,
            // It gets its address when it is enabled; until then there is room for one.
            src_addr: zeroed::<[u8; ADDRESS]>()?.cast(),
            src_addrlen: ADDRESS,
            tx_attr: tx,
            rx_attr: rx,
            ep_attr: ep,
            domain_attr: domain,
            fabric_attr: fabric,
            ..info.read()
        };
    }
    Some(info)
}

/// Describes sends and receives.
///
/// # Safety
///
/// All pointers are good.
unsafe fn describe_contexts(hints: Option<&Info>, caps: u64, tx: *mut TxAttr, rx: *mut RxAttr) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let default_flags = |get: fn(&Info) -> Option<u64>| hints.and_then(get).unwrap_or(0);
        *tx = TxAttr {
            caps: caps & TX_CAPS,
            op_flags: default_flags(|hints| Some(hints.tx_attr.as_ref()?.op_flags)),
            msg_order: ORDER,
            inject_size: MOST_INJECTED,
            size: 1024,
            iov_limit: PIECES,
            rma_iov_limit: 1,
            ..tx.read()
        };
        *rx = RxAttr {
            caps: caps & RX_CAPS,
            op_flags: default_flags(|hints| Some(hints.rx_attr.as_ref()?.op_flags)),
            msg_order: ORDER,
            size: 1024,
            iov_limit: PIECES,
            ..rx.read()
        };
    }
}

/// Describes the domain.
///
/// # Safety
///
/// All pointers are good.
unsafe fn describe_domain(version: u32, hints: Option<&Info>, domain: *mut DomainAttr) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let asked = hints.and_then(|hints| hints.domain_attr.as_ref());
        let chosen = |value: Option<c_int>, own| value.filter(|value| *value != 0).unwrap_or(own);
        *domain = DomainAttr {
            name: libc::strdup(NAME.as_ptr()),
            threading: chosen(asked.map(|asked| asked.threading), abi::THREAD_SAFE),
            control_progress: abi::PROGRESS_MANUAL,
            data_progress: abi::PROGRESS_MANUAL,
            resource_mgmt: abi::RM_ENABLED,
            av_type: chosen(asked.map(|asked| asked.av_type), abi::AV_TABLE),
            mr_mode: mr_mode(version, asked.map_or(0, |asked| asked.mr_mode)),
            mr_key_size: 8,
            cq_data_size: 8,
            cq_cnt: 1024,
            ep_cnt: 8,
            tx_ctx_cnt: 8,
            rx_ctx_cnt: 8,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            cntr_cnt: 1024,
            mr_iov_limit: 1,
            mr_cnt: 1 << 16,
            caps: DOMAIN_CAPS,
            ..domain.read()
        };
    }
}

/// Returns the mode of registration: programs choose keys, and regions begin at 0, unless it is the
/// mode of old programs.
fn mr_mode(version: u32, asked: c_int) -> c_int {
    match asked {
        abi::MR_BASIC | abi::MR_SCALABLE => asked,
        _ if version < (1 << 16 | 5) => abi::MR_SCALABLE,
        _ => 0,
    }
}

/// Tags have no fields of the provider's.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Capabilities implied by the requested ones.
const fn added(wanted: u64) -> u64 {
    let messages = wanted & (abi::MSG | abi::TAGGED) != 0;
    let directions = wanted & (abi::SEND | abi::RECV) != 0;
    let both = if messages && !directions { abi::SEND | abi::RECV } else { 0 };
    let accesses = wanted & ACCESSES != 0 && wanted & (OWN | PEERS) == 0;
    let all = if accesses { OWN | PEERS } else { 0 };
    both | all | abi::LOCAL_COMM | abi::REMOTE_COMM
}
