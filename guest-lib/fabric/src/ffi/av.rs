//! Address vectors.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use super::abi::{self, AvAttr, Fid, Ops, OpsAv, absent, class};
use super::info::ADDRESS;
use super::object::{give, guard, lock, of, take};
use crate::core::Address;

/// Addresses by number.
#[derive(Default)]
pub(super) struct Vector {
    addresses: Vec<Option<[u8; ADDRESS]>>,
    numbers: HashMap<Address, u64>,
    /// Places without an address.
    removed: usize,
}

impl Vector {
    /// Returns an endpoint's address.
    pub(super) fn get(&self, number: u64) -> Option<Address> {
        let bytes = self.addresses.get(usize::try_from(number).ok()?)?.as_ref()?;
        Some(address(bytes))
    }

    /// Returns the number of an endpoint.
    pub(super) fn number(&self, address: Address) -> Option<u64> {
        self.numbers.get(&address).copied()
    }

    fn insert(&mut self, bytes: [u8; ADDRESS]) -> u64 {
        // The number of a removed address is used again.
        let mut places = self.addresses.iter();
        let place = (self.removed > 0).then(|| places.position(Option::is_none)).flatten();
        let number = match place {
            Some(place) => {
                self.removed -= 1;
                self.addresses[place] = Some(bytes);
                place as u64
            }
            None => {
                self.addresses.push(Some(bytes));
                self.addresses.len() as u64 - 1
            }
        };
        self.numbers.entry(address(&bytes)).or_insert(number);
        number
    }

    fn remove(&mut self, number: u64) {
        let place = usize::try_from(number).ok().and_then(|at| self.addresses.get_mut(at));
        if let Some(bytes) = place.and_then(Option::take) {
            self.numbers.remove(&address(&bytes));
            self.removed += 1;
        }
    }
}

fn address(bytes: &[u8; ADDRESS]) -> Address {
    let first = bytes.first_chunk().copied().unwrap_or_default();
    Address(u64::from_le_bytes(first))
}

#[repr(C)]
pub(super) struct Av {
    fid: Fid,
    ops: *const OpsAv,
    pub(super) vector: Arc<Mutex<Vector>>,
}

static AV: Ops = Ops { bind: accept_bind, ..Ops::closing(close) };
static AV_OPS: OpsAv = OpsAv {
    size: size_of::<OpsAv>(),
    insert,
    insertsvc: absent,
    insertsym: absent,
    remove,
    lookup,
    straddr,
    av_set: absent,
};

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: the table is for address vectors.
        drop(unsafe { take::<Av>(fid) });
        0
    })
}

unsafe extern "C" fn accept_bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}

pub(super) unsafe extern "C" fn open(
    _domain: *mut Fid,
    attr: *mut AvAttr,
    av: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let attr = unsafe { attr.as_mut() };
        // Vectors that processes share by name are not there.
        if attr.as_ref().is_some_and(|attr| !attr.name.is_null() || attr.flags & abi::READ != 0) {
            return abi::NO_FUNCTION;
        }
        if let Some(attr) = attr
            && attr.kind == 0
        {
            attr.kind = abi::AV_TABLE;
        }
        let fid = Fid { class: class::AV, context, ops: &AV };
        // SAFETY: guaranteed by the caller.
        unsafe { give(Av { fid, ops: &AV_OPS, vector: Arc::default() }, av) }
    })
}

unsafe extern "C" fn insert(
    av: *mut Fid,
    addresses: *const u8,
    count: usize,
    numbers: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let av = unsafe { of::<Av>(av) };
        let mut vector = lock(&av.vector);
        for at in 0..count {
            let mut bytes = [0; ADDRESS];
            // SAFETY: the caller has `count` addresses, and places for as many numbers or none.
            unsafe {
                addresses.add(at * ADDRESS).copy_to_nonoverlapping(bytes.as_mut_ptr(), ADDRESS);
                let number = vector.insert(bytes);
                if !numbers.is_null() {
                    numbers.add(at).write(number);
                }
            }
        }
        c_int::try_from(count).unwrap_or(c_int::MAX)
    })
}

unsafe extern "C" fn remove(av: *mut Fid, numbers: *mut u64, count: usize, _: u64) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let mut vector = lock(&unsafe { of::<Av>(av) }.vector);
        for at in 0..count {
            // SAFETY: the caller has `count` numbers.
            vector.remove(unsafe { numbers.add(at).read() });
        }
        0
    })
}

unsafe extern "C" fn lookup(av: *mut Fid, number: u64, to: *mut u8, size: *mut usize) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let vector = lock(&unsafe { of::<Av>(av) }.vector);
        let place = usize::try_from(number).ok().and_then(|at| vector.addresses.get(at));
        let Some(Some(bytes)) = place else { return abi::INVALID };
        // SAFETY: guaranteed by the caller.
        unsafe { write_address(bytes, to, size) };
        0
    })
}

/// Writes what fits of an address, and its size.
///
/// # Safety
///
/// `size` is the size of the memory at `to`.
pub(super) unsafe fn write_address(bytes: &[u8; ADDRESS], to: *mut u8, size: *mut usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let room = size.read().min(ADDRESS);
        if !to.is_null() {
            bytes.as_ptr().copy_to_nonoverlapping(to, room);
        }
        size.write(ADDRESS);
    }
}

unsafe extern "C" fn straddr(
    _av: *mut Fid,
    bytes: *const u8,
    to: *mut c_char,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: an address, and a buffer of this size.
    guard((), || unsafe {
        let bytes = bytes.cast::<[u8; ADDRESS]>().read();
        let text = format!("tofu://{:016x}\0", address(&bytes).0);
        let room = size.read();
        if room > 0 && !to.is_null() {
            let length = text.len().min(room);
            text.as_ptr().cast::<c_char>().copy_to_nonoverlapping(to, length);
            to.add(length - 1).write(0);
        }
        size.write(text.len());
    });
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_removed_addresses_return() {
        let mut vector = Vector::default();
        let bytes = |byte| [byte; ADDRESS];
        assert_eq!([1, 2, 3].map(|byte| vector.insert(bytes(byte))), [0, 1, 2]);
        vector.remove(1);
        assert_eq!(vector.get(1), None);
        assert_eq!([4, 5].map(|byte| vector.insert(bytes(byte))), [1, 3]);
        assert_eq!(vector.number(address(&bytes(4))), Some(1));
    }
}
