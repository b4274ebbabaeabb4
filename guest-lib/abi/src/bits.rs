//! Macros for bit fields and for enumerated values.
//!
//! Ours rather than `bitfield-struct`, because these files are also compiled
//! into a Linux kernel module, where no crates.io crate is at hand.

/// Defines a newtype over `u64` with one getter and one `with_` setter for each field.
///
/// A field is `name: type @ low..=high`; `bool` fields take a single bit, [`Rcode`](crate::Rcode)
/// fields eight.
/// Setters mask their argument, so a value that is too wide never spills into a
/// neighbouring field.
#[macro_export]
macro_rules! bitfield {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[$fmeta:meta])*
                $field:ident / $with:ident : $ty:tt @ $lo:literal ..= $hi:literal
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Name, lowest and highest bit of every field, in the order of definition.
            pub const FIELDS: &'static [(&'static str, u32, u32)] =
                &[$((stringify!($field), $lo, $hi)),*];
            $(
                $(#[$fmeta])*
                #[inline]
                pub const fn $field(self) -> $ty {
                    $crate::bitfield!(@get $ty, self.0, $lo, $hi)
                }
                #[doc = concat!("Returns a copy with `", stringify!($field), "` (bits ",
                    stringify!($hi), ":", stringify!($lo), ") replaced.")]
                #[inline]
                #[must_use]
                pub const fn $with(self, value: $ty) -> Self {
                    Self($crate::bits::insert(self.0, $crate::bitfield!(@put $ty, value), $lo, $hi))
                }
            )*
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &self.$field()))*
                    .finish()
            }
        }

        impl From<u64> for $name {
            fn from(raw: u64) -> Self {
                Self(raw)
            }
        }

        impl From<$name> for u64 {
            fn from(value: $name) -> u64 {
                value.0
            }
        }
    };
    (@get bool, $raw:expr, $lo:literal, $hi:literal) => {
        $crate::bits::extract($raw, $lo, $hi) != 0
    };
    (@get Rcode, $raw:expr, $lo:literal, $hi:literal) => {
        $crate::Rcode::new($crate::bits::extract($raw, $lo, $hi) as u8)
    };
    (@put Rcode, $value:expr) => { $value.raw() as u64 };
    (@put $ty:tt, $value:expr) => { $value as u64 };
    (@get $ty:tt, $raw:expr, $lo:literal, $hi:literal) => {
        $crate::bits::extract($raw, $lo, $hi) as $ty
    };
}

/// Defines the meaning of a field's numbers: the enum, `ALL` its values in the order of definition,
/// and the conversion from a number.
#[macro_export]
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$cmeta:meta])* $code:ident = $number:literal, )* }
    ) => {
        $(#[$meta])*
        #[repr(u8)]
        pub enum $name { $( $(#[$cmeta])* $code = $number, )* }

        impl $name {
            /// Every one of them.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$code),*];

            /// The one with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $( $number => Some(Self::$code), )*
                    _ => None,
                }
            }
        }
    };
}

/// Mask of a field from bit `lo` to bit `hi`, at bit 0.
#[inline]
const fn mask(lo: u32, hi: u32) -> u64 {
    u64::MAX >> (63 - (hi - lo))
}

/// Bits `hi:lo` of `raw`, shifted down to bit 0.
#[inline]
pub const fn extract(raw: u64, lo: u32, hi: u32) -> u64 {
    (raw >> lo) & mask(lo, hi)
}

/// `raw` with bits `hi:lo` replaced by the low bits of `value`.
#[inline]
pub const fn insert(raw: u64, value: u64, lo: u32, hi: u32) -> u64 {
    let m = mask(lo, hi) << lo;
    (raw & !m) | ((value << lo) & m)
}
