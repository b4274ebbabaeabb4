//! The serial port: guest output as lines and as bytes, and input.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use kvm_ioctls::VmFd;
use vm_superio::serial::{Error, NoEvents};
use vm_superio::{Serial, Trigger};

use crate::layout::SERIAL_IRQ;

/// Longest line handed out, in bytes; a longer one is cut into several.
const LINE_MAX: usize = 1024;

/// Receives the lines that a guest prints, without their line ends.
pub(crate) type LineSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Receives the output of a guest as it is printed.
pub(crate) type ByteSink = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Input kept for a guest that does not read it, in bytes.
const INPUT_MAX: usize = 4 << 10;

/// A 16550 whose output is collected into lines.
pub(crate) struct SerialPort {
    serial: Serial<IrqLine, NoEvents, Lines>,
    /// Bytes that did not fit into the port's FIFO yet.
    input: VecDeque<u8>,
}

impl SerialPort {
    pub(crate) fn new(vm: Arc<VmFd>, sink: LineSink) -> Self {
        let lines = Lines { sink, raw: None, line: Vec::new() };
        Self { serial: Serial::new(IrqLine(vm), lines), input: VecDeque::new() }
    }

    /// Also passes all further output to `sink`, byte by byte as the guest writes it.
    pub(crate) fn set_raw(&mut self, sink: ByteSink) {
        self.serial.writer_mut().raw = Some(sink);
    }

    /// Takes input for the guest; returns how much of it was taken, which is 0 if the buffer is
    /// full.
    pub(crate) fn input(&mut self, data: &[u8]) -> usize {
        let taken = data.len().min(INPUT_MAX - self.input.len());
        self.input.extend(&data[..taken]);
        self.feed();
        taken
    }

    /// Moves input into the FIFO as far as it has room.
    fn feed(&mut self) {
        while !self.input.is_empty() && self.serial.fifo_capacity() > 0 {
            let (next, _) = self.input.as_slices();
            // A port in loop mode takes nothing; only raising the interrupt line
            // can fail, after the data was taken.
            let room = next.len().min(self.serial.fifo_capacity());
            let taken = match self.serial.enqueue_raw_bytes(&next[..room]) {
                Ok(taken) => taken,
                Err(Error::Trigger(_)) => room,
                Err(_) => 0,
            };
            if taken == 0 {
                return;
            }
            self.input.drain(..taken);
        }
    }

    /// Writes `data` to the register at `offset`. More than one byte comes from
    /// a string instruction: each byte goes to the same register.
    pub(crate) fn write(&mut self, offset: u8, data: &[u8]) {
        for &byte in data {
            // Only raising the interrupt line can fail, which costs the guest that interrupt and
            // affects no other guest.
            let _ = self.serial.write(offset, byte);
        }
        // The guest may have left loop mode.
        self.feed();
    }

    pub(crate) fn read(&mut self, offset: u8, data: &mut [u8]) {
        data.fill_with(|| self.serial.read(offset));
        self.feed();
    }

    /// Takes text past the registers.
    pub(crate) fn print(&mut self, text: &[u8]) {
        self.serial.writer_mut().take(text);
    }

    /// Hands out an unfinished last line.
    pub(crate) fn finish(&mut self) {
        self.serial.writer_mut().end_line();
    }
}

struct IrqLine(Arc<VmFd>);

impl Trigger for IrqLine {
    type E = vmm_sys_util::errno::Error;

    fn trigger(&self) -> Result<(), Self::E> {
        // ISA interrupts are edges.
        self.0.set_irq_line(SERIAL_IRQ, true)?;
        self.0.set_irq_line(SERIAL_IRQ, false)
    }
}

struct Lines {
    sink: LineSink,
    raw: Option<ByteSink>,
    line: Vec<u8>,
}

impl Lines {
    fn take(&mut self, data: &[u8]) {
        if let Some(raw) = &self.raw {
            raw(data);
        }
        for &byte in data {
            if byte == b'\n' {
                if self.line.is_empty() {
                    (self.sink)("");
                }
                self.end_line();
                continue;
            }
            if self.line.len() == LINE_MAX {
                self.end_line();
            }
            self.line.push(byte);
        }
    }

    fn end_line(&mut self) {
        if !self.line.is_empty() {
            (self.sink)(String::from_utf8_lossy(&self.line).trim_end_matches('\r'));
            self.line.clear();
        }
    }
}

impl io::Write for Lines {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.take(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn output_is_cut_at_line_ends_and_limit() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = {
            let seen = seen.clone();
            Arc::new(move |line: &str| seen.lock().unwrap().push(line.to_owned()))
        };
        let mut lines = Lines { sink, raw: None, line: Vec::new() };
        lines.write_all(b"one\r\n\ntwo \xff").unwrap();
        lines.end_line();
        lines.write_all(&[b'x'; LINE_MAX + 1]).unwrap();
        lines.write_all(b"\n").unwrap();
        let expected =
            ["one".into(), String::new(), "two \u{fffd}".into(), "x".repeat(LINE_MAX), "x".into()];
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
