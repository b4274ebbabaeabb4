// SPDX-License-Identifier: GPL-2.0

//! Text in a buffer of C.

use core::fmt::{Error, Result, Write};

/// A buffer for text.
pub(crate) struct Text<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl<'a> Text<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, len: 0 }
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> Result {
        let end = self.len + text.len();
        let place = self.buf.get_mut(self.len..end).ok_or(Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}
