//! VCQ IDs, VBG IDs and STADDs: 64-bit words on whose layout programs rely.
//!
//! The layouts are those of real systems, decoded from public logs and sources.

use tofu_abi::generation::Generation;
use tofu_abi::regs::{NUM_CQ, NUM_TNI};
use tofu_abi::{BgId, Coords, CqId, Path, TniId, bitfield};

use crate::error::{Code, Error};

/// Component IDs of a VCQ: 0 to 7.
pub const NUM_CMP_IDS: u16 = 8;
/// Steering tags of a VCQ that programs can choose: 0 to 255.
pub const NUM_RESERVED_STAGS: u32 = 256;
/// The first steering tag that the library chooses. Those below belong to the 16 extra values, with
/// 256 each.
pub const FIRST_NORMAL_STAG: u32 = 4096;
/// The path coordinate that means the default path.
pub const PATH_COORD_NULL: u8 = 0xff;

/// The largest X, Y and Z.
const MAX_XYZ: u8 = 31;

bitfield! {
    /// A VCQ ID: node, interface, control queue, extra value and path.
    ///
    /// Bits 63:28 are those of a descriptor's first word.
    pub struct VcqId {
        /// Control queue, 0 to 11.
        cq / with_cq: u8 @ 0..=5,
        /// Extra value: 8 + component ID, or 0 to 7 for a VCQ without one.
        extra / with_extra: u8 @ 24..=27,
        /// The path as a number: A [0], B [2:1], C [3].
        path_id / with_path_id: u8 @ 28..=31,
        /// X.
        x / with_x: u8 @ 32..=39,
        /// Y.
        y / with_y: u8 @ 40..=47,
        /// Z.
        z / with_z: u8 @ 48..=55,
        /// A.
        a / with_a: u8 @ 56..=56,
        /// B.
        b / with_b: u8 @ 57..=58,
        /// C.
        c / with_c: u8 @ 59..=59,
        /// Interface, 0 to 5.
        tni / with_tni: u8 @ 61..=63,
    }
}

/// Bits of a VCQ ID that must be 0: 23:6, 60, and the upper three of X, Y and Z.
const VCQ_ID_ZEROS: u64 = 0x10e0_e0e0_00ff_ffc0;

impl VcqId {
    /// Creates the ID of a VCQ, with the default path, through the node's own A, B and C.
    pub const fn new(node: Coords, tni: TniId, cq: CqId, extra: u8) -> Self {
        Self::at(node, tni.get())
            .with_cq(cq.get())
            .with_extra(extra)
            .with_path_id(path_id(node.default_path()))
    }

    /// Returns an ID with the bits of an interface of a node, which are the same in VBG IDs.
    pub(crate) const fn at(node: Coords, tni: u8) -> Self {
        Self(0)
            .with_x(node.x)
            .with_y(node.y)
            .with_z(node.z)
            .with_a(node.a)
            .with_b(node.b)
            .with_c(node.c)
            .with_tni(tni)
    }

    /// Computes the ID of a VCQ with a component ID. The VCQ need not exist.
    ///
    /// # Errors
    ///
    /// If the coordinates, interface, control queue or component ID are invalid.
    pub fn construct(node: Coords, tni: u16, cq: u16, cmp_id: u16) -> Result<Self, Error> {
        check_coords(node)?;
        let tni = check_tni(tni)?;
        let cq = u8::try_from(cq).ok().and_then(CqId::new).ok_or_else(|| {
            let hint = "a TNI has control queues 0 to 11";
            Error::with_value(Code::InvalidCqId, "control queue", cq.into(), hint)
        })?;
        Ok(Self::new(node, tni, cq, check_cmp_id(cmp_id)?))
    }

    /// Checks an untrusted ID.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqId`] if no VCQ can have it.
    #[inline]
    pub fn check(raw: u64) -> Result<Self, Error> {
        let id = Self(raw);
        let good = raw & VCQ_ID_ZEROS == 0
            && usize::from(id.cq()) < NUM_CQ
            && usize::from(id.tni()) < NUM_TNI
            && id.b() < 3
            && is_path(id.path_id());
        if good {
            Ok(id)
        } else {
            let hint = "not the ID of a VCQ: take it from utofu_query_vcq_id";
            Err(Error::with_value(Code::InvalidVcqId, "VCQ ID", raw, hint))
        }
    }

    /// Returns the coordinates of the node.
    pub const fn coords(self) -> Coords {
        Coords::new(self.x(), self.y(), self.z(), self.a(), self.b(), self.c())
    }

    /// Returns a copy with another path. `None` means the path through A, B, C = 0, 0, 0.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidPath`] for A, B, C that no node has.
    pub fn with_path(self, path: Option<Path>) -> Result<Self, Error> {
        path.map_or(Ok(0), check_path).map(|number| self.with_path_id(number))
    }

    /// Returns the number of `path` in the flags of a command to this ID. 0 is the ID's own path.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidPath`] for A, B, C that no node has.
    pub fn path_id_of(self, path: Path) -> Result<u8, Error> {
        Ok(check_path(path)? ^ self.path_id())
    }

    /// Returns the path that a command to this ID takes with path number `id`.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidPathId`] if there is none.
    pub fn path_of_id(self, id: u8) -> Result<Path, Error> {
        let number = self.path_id() ^ id;
        if id > 15 || !is_path(number) {
            let hint = "take it from utofu_get_path_id for the same VCQ ID";
            return Err(Error::with_value(Code::InvalidPathId, "path ID", id.into(), hint));
        }
        Ok(Path::new(number & 1, number >> 1 & 3, number >> 3))
    }
}

/// Returns a path as a four-bit number.
pub(crate) const fn path_id(path: Path) -> u8 {
    path.a & 1 | (path.b & 3) << 1 | (path.c & 1) << 3
}

/// Returns whether a four-bit number is a path: B is at most 2.
#[inline]
pub(crate) const fn is_path(number: u8) -> bool {
    number & 6 != 6
}

pub(crate) fn check_path(path: Path) -> Result<u8, Error> {
    if path.a > 1 || path.b > 2 || path.c > 1 {
        let value = u64::from(path.a) << 16 | u64::from(path.b) << 8 | u64::from(path.c);
        let hint = "A and C are 0 or 1, B is 0 to 2";
        return Err(Error::with_value(Code::InvalidPath, "path coordinates", value, hint));
    }
    Ok(path_id(path))
}

/// Checks that a node could have these coordinates.
///
/// # Errors
///
/// [`Code::InvalidCoords`] if none could.
pub(crate) fn check_coords(node: Coords) -> Result<Coords, Error> {
    let xyz = node.x <= MAX_XYZ && node.y <= MAX_XYZ && node.z <= MAX_XYZ;
    if xyz && node.a < 2 && node.b < 3 && node.c < 2 {
        return Ok(node);
    }
    let value = node.to_array().iter().fold(0, |n, &c| n << 8 | u64::from(c));
    let hint = "X, Y and Z are 0 to 31, A and C 0 or 1, B 0 to 2";
    Err(Error::with_value(Code::InvalidCoords, "coordinates", value, hint))
}

/// Checks that a network interface exists.
///
/// # Errors
///
/// [`Code::InvalidTniId`] if it does not.
pub fn check_tni(tni: u16) -> Result<TniId, Error> {
    u8::try_from(tni).ok().and_then(TniId::new).ok_or_else(|| {
        let hint = "there are TNIs 0 to 5";
        Error::with_value(Code::InvalidTniId, "TNI", tni.into(), hint)
    })
}

/// Returns the extra value of a component ID.
///
/// # Errors
///
/// [`Code::InvalidCmpId`] if the component ID does not exist.
pub fn check_cmp_id(cmp_id: u16) -> Result<u8, Error> {
    if cmp_id < NUM_CMP_IDS {
        Ok(8 + cmp_id as u8)
    } else {
        let hint = "component IDs are 0 to 7";
        Err(Error::with_value(Code::InvalidCmpId, "component ID", cmp_id.into(), hint))
    }
}

bitfield! {
    /// A VBG ID: barrier gate, with node and interface as in a VCQ ID.
    pub struct VbgId {
        /// Barrier gate, 0 to 47; 0 to 15 are start and end gates.
        bg / with_bg: u8 @ 0..=5,
    }
}

/// Bits of a VBG ID that must be 0: 31:6, 60, and the upper three of X, Y and Z.
const VBG_ID_ZEROS: u64 = 0x10e0_e0e0_ffff_ffc0;

impl VbgId {
    /// No gate.
    pub const NULL: Self = Self(u64::MAX);

    /// Creates the ID of a gate.
    pub const fn new(node: Coords, tni: TniId, bg: BgId) -> Self {
        Self(VcqId::at(node, tni.get()).0).with_bg(bg.get())
    }

    /// Checks an untrusted ID.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVbgId`] if no VBG can have it.
    pub fn check(raw: u64) -> Result<Self, Error> {
        let id = Self(raw);
        let good = raw & VBG_ID_ZEROS == 0 && usize::from(id.tni()) < NUM_TNI && id.coords().b < 3;
        if good {
            Ok(id)
        } else {
            let hint = "not the ID of a VBG";
            Err(Error::with_value(Code::InvalidVbgId, "VBG ID", raw, hint))
        }
    }

    /// Checks an untrusted ID on a machine of a generation, whose interfaces may have fewer gates
    /// than IDs can express.
    ///
    /// # Errors
    ///
    /// As [`VbgId::check`].
    pub fn check_of(raw: u64, generation: Generation) -> Result<Self, Error> {
        let id = Self::check(raw)?;
        let gate = TniId::new(id.tni()).zip(BgId::new(id.bg()));
        if gate.is_some_and(|(tni, bg)| generation.description().has_gate(tni, bg)) {
            return Ok(id);
        }
        let hint = "the machine has no such gate";
        Err(Error::with_value(Code::InvalidVbgId, "VBG ID", raw, hint))
    }

    /// Returns the coordinates of the node.
    pub const fn coords(self) -> Coords {
        VcqId(self.0).coords()
    }

    /// Returns the interface, 0 to 5.
    pub const fn tni(self) -> u8 {
        VcqId(self.0).tni()
    }

    /// Returns whether it is the ID of a gate of this node.
    pub(crate) fn is_of(self, node: Coords) -> bool {
        Self::check(self.0).is_ok_and(|id| id.coords() == node)
    }
}

bitfield! {
    /// An STADD: a place in registered memory. Adding a number to it advances it by that many
    /// bytes.
    ///
    /// Bits 63:58 are 0 here. In a descriptor they are the control queue, which comes from the VCQ
    /// ID.
    pub struct Stadd {
        /// Byte offset.
        offset / with_offset: u64 @ 0..=39,
        /// Steering tag.
        stag / with_stag: u32 @ 40..=57,
        /// Control queue: always 0.
        cqid / with_cqid: u8 @ 58..=63,
    }
}

impl Stadd {
    /// Creates an STADD.
    pub const fn new(stag: u32, offset: u64) -> Self {
        Self(0).with_stag(stag).with_offset(offset)
    }

    /// Returns the STADD of memory that the VCQ with this ID registers under a reserved steering
    /// tag, at an address that is a multiple of 256.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStag`] for tags above 255.
    pub fn reserved(id: VcqId, stag: u32) -> Result<Self, Error> {
        Ok(Self::new(reserved_stag(id.extra(), stag)?, 0))
    }

    /// Checks an untrusted STADD.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`] if it has bits that an STADD cannot have.
    #[inline]
    pub fn check(raw: u64, what: &'static str) -> Result<Self, Error> {
        if raw >> 58 == 0 {
            Ok(Self(raw))
        } else {
            let hint = "not an STADD: bits 63 to 58 are 0";
            Err(Error::with_value(Code::InvalidStadd, what, raw, hint))
        }
    }
}

/// Returns the device's steering tag for a reserved one.
pub(crate) fn reserved_stag(extra: u8, stag: u32) -> Result<u32, Error> {
    if stag < NUM_RESERVED_STAGS {
        Ok(u32::from(extra) << 8 | stag)
    } else {
        let hint = "reserved steering tags are 0 to 255";
        Err(Error::with_value(Code::InvalidStag, "steering tag", stag.into(), hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node() -> impl Strategy<Value = Coords> {
        (0u8..32, 0u8..32, 0u8..32, 0u8..2, 0u8..3, 0u8..2)
            .prop_map(|(x, y, z, a, b, c)| Coords::new(x, y, z, a, b, c))
    }

    #[test]
    fn layout_is_that_of_real_systems() {
        let node = Coords::new(0x11, 0x12, 0x13, 1, 2, 1);
        let id = VcqId::construct(node, 5, 10, 7).unwrap();
        // TNI 5 = 101, c 1, b 10, a 1; z, y, x; path c 1, b 10, a 1; extra 15; CQ 10.
        assert_eq!(id.0, 0xad13_1211_df00_000a);
        assert_eq!(id.extra(), 15);
        let stadd = |cmp, stag| {
            let id = VcqId::construct(Coords::default(), 0, 0, cmp).unwrap();
            Stadd::reserved(id, stag).unwrap().0
        };
        assert_eq!(stadd(7, 11), 0x000f_0b00_0000_0000);
        assert_eq!(stadd(7, 14), 0x000f_0e00_0000_0000);
    }

    #[test]
    fn bounds_are_checked() {
        let node = Coords::new(0, 0, 0, 0, 0, 0);
        let code = |r: Result<VcqId, Error>| r.unwrap_err().code();
        assert_eq!(code(VcqId::construct(node, 6, 0, 0)), Code::InvalidTniId);
        assert_eq!(code(VcqId::construct(node, 0, 12, 0)), Code::InvalidCqId);
        assert_eq!(code(VcqId::construct(node, 0, 0, 8)), Code::InvalidCmpId);
        for (axis, bad) in [(0, 32), (1, 32), (2, 255), (3, 2), (4, 3), (5, 2)] {
            let mut coords = [0; 6];
            coords[axis] = bad;
            let node = Coords::from_array(coords);
            assert_eq!(code(VcqId::construct(node, 0, 0, 0)), Code::InvalidCoords, "axis {axis}");
        }
        assert_eq!(Stadd::check(1 << 58, "x").unwrap_err().code(), Code::InvalidStadd);
        assert_eq!(Stadd::reserved(VcqId(0), 256).unwrap_err().code(), Code::InvalidStag);
    }

    proptest! {
        #[test]
        fn ids_come_back(node in node(), tni in 0u16..6, cq in 0u16..12, cmp in 0u16..8) {
            let id = VcqId::construct(node, tni, cq, cmp).unwrap();
            prop_assert_eq!(VcqId::check(id.0).unwrap(), id);
            prop_assert_eq!(id.coords(), node);
            prop_assert_eq!(u16::from(id.tni()), tni);
            prop_assert_eq!(u16::from(id.cq()), cq);
            prop_assert_eq!(u16::from(id.extra()), cmp + 8);
            prop_assert_eq!(id.path_of_id(0).unwrap(), node.default_path());
        }

        #[test]
        fn path_number_leads_to_its_path(node in node(), a in 0u8..2, b in 0u8..3, c in 0u8..2) {
            let path = Path::new(a, b, c);
            let id = VcqId::construct(node, 0, 0, 0).unwrap();
            for id in [id, id.with_path(None).unwrap(), id.with_path(Some(path)).unwrap()] {
                let number = id.path_id_of(path).unwrap();
                prop_assert_eq!(id.path_of_id(number).unwrap(), path);
            }
            prop_assert_eq!(id.with_path(Some(path)).unwrap().path_of_id(0).unwrap(), path);
        }

        #[test]
        fn only_ids_that_can_be_made_pass(raw: u64) {
            if let Ok(id) = VcqId::check(raw) {
                prop_assert!(check_coords(id.coords()).is_ok());
                let (tni, cq) = (TniId::new(id.tni()).unwrap(), CqId::new(id.cq()).unwrap());
                let made = VcqId::new(id.coords(), tni, cq, id.extra());
                prop_assert_eq!(made.with_path_id(id.path_id()).0, raw);
            }
        }
    }
}
