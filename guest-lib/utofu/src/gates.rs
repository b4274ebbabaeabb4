//! The allocation of barrier gates, and their links.

use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::generation::Generation;
use tofu_abi::regs::NUM_TNI;
use tofu_abi::{BgId, Path, TniId};

use crate::error::{Code, Error};
use crate::ids::{PATH_COORD_NULL, VbgId, check_path};

/// The free barrier gates of a device.
///
/// The lowest gates are handed out first, so that processes that make the same requests on nodes
/// without other users get the same gates.
#[derive(Clone, Debug)]
pub struct GatePool {
    /// Gates of each interface, as masks.
    all: [u64; NUM_TNI],
    free: [u64; NUM_TNI],
    /// Gates that have a barrier channel.
    channels: u64,
}

impl Default for GatePool {
    fn default() -> Self {
        Self::new(Generation::default())
    }
}

impl GatePool {
    /// Creates a pool of all gates of a device, except for those of channels that the system keeps.
    pub fn new(generation: Generation) -> Self {
        let description = generation.description();
        let profile = description.barrier;
        let channels = first(profile.channels.into());
        let system = channels & !first((profile.channels - description.system_channels).into());
        let gates = first(profile.gates.into()) & !system;
        let of = |tni| if tni < usize::from(profile.tnis) { gates } else { 0 };
        let all = core::array::from_fn(of);
        Self { all, free: all, channels }
    }

    /// Takes a start and end gate, and relay gates. Returns them as a mask, or `None` if not all
    /// are free, in which case nothing is taken.
    pub fn take(&mut self, tni: TniId, relays: usize) -> Option<u64> {
        let free = &mut self.free[tni.index()];
        let mut taken = lowest(*free & self.channels)?;
        // The loop ends once no gate is left.
        for _ in 0..relays {
            taken |= lowest(*free & !self.channels & !taken)?;
        }
        *free &= !taken;
        Some(taken)
    }

    /// Returns gates to the pool.
    pub fn give(&mut self, tni: TniId, gates: u64) {
        self.free[tni.index()] |= gates & self.all[tni.index()];
    }
}

/// Returns a mask of the lowest `count` bits.
const fn first(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Returns the lowest set bit.
const fn lowest(mask: u64) -> Option<u64> {
    match mask {
        0 => None,
        mask => Some(mask & mask.wrapping_neg()),
    }
}

/// Returns the gates in a mask.
pub fn gates_in(mask: u64) -> impl Iterator<Item = BgId> {
    BgId::ALL.into_iter().filter(move |bg| mask >> bg.get() & 1 != 0)
}

/// The links of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VbgSetting {
    /// The gate.
    pub id: VbgId,
    /// Input from a gate of the same interface.
    pub src_local: Option<VbgId>,
    /// Input from any gate.
    pub src_remote: Option<VbgId>,
    /// Output to a gate of the same interface.
    pub dst_local: Option<VbgId>,
    /// Output to any gate.
    pub dst_remote: Option<VbgId>,
    /// The path to the remote output, or `None` for the default path.
    pub path: Option<Path>,
}

impl VbgSetting {
    /// Creates a setting without links.
    pub const fn new(id: VbgId) -> Self {
        Self {
            id,
            src_local: None,
            src_remote: None,
            dst_local: None,
            dst_remote: None,
            path: None,
        }
    }

    /// Checks an untrusted setting. `links` are source and destination of local and remote signals,
    /// in the order of `struct utofu_vbg_setting`.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVbgId`], [`Code::InvalidPath`].
    pub fn check(id: u64, links: [u64; 4], path: [u8; 3]) -> Result<Self, Error> {
        let link = |raw| match VbgId(raw) {
            VbgId::NULL => Ok(None),
            _ => VbgId::check(raw).map(Some),
        };
        let [src_local, src_remote, dst_local, dst_remote] = links;
        Ok(Self {
            id: VbgId::check(id)?,
            src_local: link(src_local)?,
            src_remote: link(src_remote)?,
            dst_local: link(dst_local)?,
            dst_remote: link(dst_remote)?,
            path: match path {
                // There is no remote output.
                _ if dst_remote == VbgId::NULL.0 => None,
                [PATH_COORD_NULL, ..] => None,
                [a, b, c] => {
                    let path = Path::new(a, b, c);
                    check_path(path)?;
                    Some(path)
                }
            },
        })
    }

    fn locals(&self) -> impl Iterator<Item = VbgId> {
        [self.src_local, self.dst_local].into_iter().flatten()
    }
}

/// Gates that one barrier channel manages: those that lead from and to its start and end gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChannelGates {
    pub(crate) start: VbgId,
    pub(crate) settings: Vec<VbgSetting>,
}

/// Divides gates among their channels.
///
/// Gates connected by local links belong together. Those that are not connected to a start and end
/// gate in this way belong to the first channel. Gates below `count` are start and end gates.
pub(crate) fn by_channel(settings: &[VbgSetting], count: u8) -> Result<Vec<ChannelGates>, Error> {
    let wrong = |id: VbgId, hint| Err(Error::with_value(Code::InvalidVbgId, "VBG ID", id.0, hint));
    let find = |id: VbgId| settings.iter().position(|setting| setting.id == id);
    let mut channel_of: Vec<Option<usize>> = vec![None; settings.len()];
    let mut channels = Vec::new();
    for (i, setting) in settings.iter().enumerate() {
        if find(setting.id) != Some(i) {
            return wrong(setting.id, "its links are given twice");
        }
        for local in setting.locals() {
            if local.with_bg(0) != setting.id.with_bg(0) {
                return wrong(local, "a local link leads to a gate of the same node and TNI");
            }
            if find(local).is_none() {
                return wrong(
                    local,
                    "a local link leads to a gate that is linked in the same call",
                );
            }
        }
        if setting.id.bg() >= count {
            continue;
        }
        let channel = channels.len();
        channels.push(ChannelGates { start: setting.id, settings: Vec::new() });
        let mut reached = vec![i];
        while let Some(next) = reached.pop() {
            match channel_of[next] {
                Some(known) if known == channel => continue,
                Some(_) => {
                    let hint = "local links lead from it to another start and end gate: \
                                use remote links between them";
                    return wrong(setting.id, hint);
                }
                None => channel_of[next] = Some(channel),
            }
            reached.extend(settings[next].locals().filter_map(find));
        }
    }
    for (setting, channel) in settings.iter().zip(channel_of) {
        match channels.get_mut(channel.unwrap_or(0)) {
            Some(channel) => channel.settings.push(*setting),
            None => {
                let hint = "it is linked to no start and end gate in the same call";
                return wrong(setting.id, hint);
            }
        }
    }
    Ok(channels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::Coords;
    use tofu_abi::regs::{NUM_BCH, NUM_BG};

    const ALL: u64 = first(NUM_BG);
    const CHANNELS: u64 = first(NUM_BCH);

    #[test]
    fn earlier_generations_use_one_tnis_gates() {
        let mut pool = GatePool::new(Generation::K);
        for tni in &TniId::ALL[1..] {
            assert_eq!(pool.take(*tni, 0), None);
        }
        assert_eq!(pool.take(TniId::ALL[0], 57), None, "8 to 63 are relays");
        assert_eq!(pool.take(TniId::ALL[0], 56), Some(1 | !0xff));
        for bg in 1..7 {
            assert_eq!(pool.take(TniId::ALL[0], 0), Some(1 << bg));
        }
        assert_eq!(pool.take(TniId::ALL[0], 0), None, "7 is the system's");
        pool.give(TniId::ALL[0], u64::MAX);
        pool.give(TniId::ALL[1], u64::MAX);
        let taken = (pool.take(TniId::ALL[0], 56), pool.take(TniId::ALL[1], 0));
        assert_eq!(taken, (Some(1 | !0xff), None));
    }

    fn gate_of(node: Coords, tni: u8, bg: u8) -> VbgId {
        VbgId::new(node, TniId::new(tni).unwrap(), BgId::new(bg).unwrap())
    }

    fn gate(tni: u8, bg: u8) -> VbgId {
        gate_of(Coords::new(3, 4, 5, 1, 2, 1), tni, bg)
    }

    #[test]
    fn all_gates_or_none_are_taken() {
        let mut pool = GatePool::default();
        assert_eq!(pool.take(TniId::ALL[0], 2), Some(1 | 3 << 16));
        assert_eq!(pool.take(TniId::ALL[0], 0), Some(2));
        assert_eq!(pool.take(TniId::ALL[0], 31), None, "30 are left");
        assert_eq!(pool.take(TniId::ALL[0], 30), Some(4 | (ALL & !CHANNELS & !(3 << 16))));
        assert_eq!(pool.take(TniId::ALL[0], 1), None);
        for bg in 3..16 {
            assert_eq!(pool.take(TniId::ALL[0], 0), Some(1 << bg));
        }
        assert_eq!(pool.take(TniId::ALL[0], 0), None, "no channel is left");
        pool.give(TniId::ALL[0], 1 << 16 | 1 << 5);
        assert_eq!(pool.take(TniId::ALL[0], 1), Some(1 << 16 | 1 << 5));
        assert_eq!(pool.take(TniId::ALL[5], 32), Some(1 | ALL & !CHANNELS));
        assert_eq!(pool.take(TniId::ALL[5], usize::MAX), None);
    }

    #[test]
    fn gates_belong_to_their_linked_channel() {
        let (start, up, down, other) = (gate(2, 3), gate(2, 16), gate(2, 17), gate(4, 3));
        let settings = [
            VbgSetting { src_local: Some(start), ..VbgSetting::new(up) },
            VbgSetting { dst_local: Some(up), src_local: Some(down), ..VbgSetting::new(start) },
            VbgSetting { dst_local: Some(start), ..VbgSetting::new(down) },
            VbgSetting { src_remote: Some(up), ..VbgSetting::new(other) },
            // A gate that only connects two other nodes.
            VbgSetting { src_remote: Some(up), ..VbgSetting::new(gate(5, 20)) },
        ];
        let channels = by_channel(&settings, NUM_BCH as u8).unwrap();
        assert_eq!(channels.len(), 2);
        assert_eq!(channels[0].start, start);
        assert_eq!(channels[0].settings, [settings[0], settings[1], settings[2], settings[4]]);
        assert_eq!(channels[1], ChannelGates { start: other, settings: vec![settings[3]] });
    }

    #[test]
    fn links_that_cannot_be() {
        let code = |settings: &[VbgSetting]| by_channel(settings, NUM_BCH as u8).unwrap_err();
        let (start, relay) = (gate(0, 0), gate(0, 16));
        let to =
            |id: VbgId, local: VbgId| VbgSetting { dst_local: Some(local), ..VbgSetting::new(id) };
        let cases: &[(&[VbgSetting], &str)] = &[
            (&[to(start, start), to(start, start)], "twice"),
            (&[to(start, gate(1, 0))], "same node and TNI"),
            (&[to(start, gate_of(Coords::default(), 0, 16))], "same node and TNI"),
            (&[to(start, relay)], "same call"),
            (&[to(relay, relay)], "no start and end gate"),
            (&[to(start, gate(0, 1)), to(gate(0, 1), start)], "another start"),
        ];
        for (settings, hint) in cases {
            let error = code(settings);
            assert_eq!(error.code(), Code::InvalidVbgId);
            assert!(alloc::format!("{error}").contains(hint), "{error}");
        }
        assert_eq!(by_channel(&[], NUM_BCH as u8).unwrap(), []);
    }

    #[test]
    fn settings_from_outside() {
        let (null, id) = (VbgId::NULL.0, gate(1, 2));
        let far = gate_of(Coords::default(), 5, 47);
        let good = VbgSetting::check(id.0, [null, far.0, id.0, far.0], [1, 2, 0]).unwrap();
        let expected = VbgSetting {
            src_remote: Some(far),
            dst_local: Some(id),
            dst_remote: Some(far),
            path: Some(Path::new(1, 2, 0)),
            ..VbgSetting::new(id)
        };
        assert_eq!(good, expected);
        let code = |id, links, path| VbgSetting::check(id, links, path).map_err(|e| e.code());
        assert_eq!(code(null, [null; 4], [0; 3]), Err(Code::InvalidVbgId));
        for i in 0..4 {
            let mut links = [null; 4];
            links[i] = id.0 | 1 << 60;
            assert_eq!(code(id.0, links, [0; 3]), Err(Code::InvalidVbgId));
        }
        let links = [null, null, null, far.0];
        assert_eq!(code(id.0, links, [0, 3, 0]), Err(Code::InvalidPath));
        assert_eq!(code(id.0, links, [0xff, 3, 9]).unwrap().path, None);
        assert_eq!(code(id.0, [null; 4], [9, 9, 9]).unwrap().path, None, "no path leads there");
    }
}
