//! Adapts guests' console output to the user's terminal.
//!
//! A console is a stream for a separate terminal. Firmware resets that terminal, clears it and
//! turns its wrapping off; shells query the position of its cursor. A user who attaches has another
//! terminal, whose screen does not belong to the guest and is used afterwards.

use std::collections::BTreeSet;

use vte::{Params, Parser, Perform};

/// Passes only allowed output of a guest to the user's terminal.
///
/// Text, colours, cursor movements and the sequences that editors need pass. Resets, changes of
/// line wrapping, titles, queries and anything else that outlives the guest's output do not. Modes
/// that editors turn on are recorded, for [`Filter::restore`].
#[derive(Default)]
pub struct Filter {
    parser: Parser,
    passed: Passed,
}

/// The parser's output: the bytes that were passed on, and state.
#[derive(Default)]
struct Passed {
    out: Vec<u8>,
    /// Only text and colours.
    strict: bool,
    /// Firmware has requested a reset, which is followed by clearing the screen.
    resetting: bool,
    /// Private modes that differ from a terminal's initial ones.
    modes: BTreeSet<u16>,
    keypad: bool,
    margins: bool,
    charset: bool,
}

/// Private modes that full-screen programs turn on and off: cursor keys, the cursor's visibility,
/// the alternate screen in its three kinds, bracketed paste.
const MODES: [u16; 6] = [1, 25, 47, 1047, 1049, 2004];
/// Those of them that are on initially.
const ON: [u16; 1] = [25];

impl Filter {
    /// The bytes for the terminal from these bytes, which are live: their writer interacts with the
    /// user.
    pub fn live(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pass(bytes, false)
    }

    /// The bytes for the terminal from bytes that were written earlier, for no viewer: text and
    /// colours only.
    pub fn replay(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pass(bytes, true)
    }

    fn pass(&mut self, bytes: &[u8], strict: bool) -> Vec<u8> {
        self.passed.strict = strict;
        self.parser.advance(&mut self.passed, bytes);
        std::mem::take(&mut self.passed.out)
    }

    /// The bytes that restore the terminal, except for the text.
    pub fn restore(&self) -> Vec<u8> {
        let passed = &self.passed;
        let mut out = Vec::new();
        for mode in &passed.modes {
            let on = if ON.contains(mode) { 'h' } else { 'l' };
            out.extend(format!("\x1b[?{mode}{on}").bytes());
        }
        if passed.margins {
            // Setting them moves the cursor.
            out.extend(b"\x1b7\x1b[r\x1b8");
        }
        if passed.keypad {
            out.extend(b"\x1b>");
        }
        if passed.charset {
            out.extend(b"\x0f\x1b(B");
        }
        out.extend(b"\x1b[0m");
        out
    }
}

impl Passed {
    fn sequence(&mut self, params: &Params, intermediates: &[u8], action: char) {
        self.out.extend(b"\x1b[");
        // The private marker comes before the numbers, other intermediates behind them.
        let private = intermediates.first().filter(|byte| (b'<'..=b'?').contains(byte));
        self.out.extend(private);
        let numbers = params.iter().map(|parts| {
            let parts: Vec<_> = parts.iter().map(u16::to_string).collect();
            parts.join(":")
        });
        self.out.extend(numbers.collect::<Vec<_>>().join(";").bytes());
        self.out.extend(intermediates.iter().skip(usize::from(private.is_some())));
        self.out.extend(action.to_string().bytes());
    }

    /// Passes on those that full-screen programs need.
    fn private_modes(&mut self, params: &Params, on: bool) {
        for mode in params.iter().filter_map(|parts| parts.first()) {
            if !MODES.contains(mode) {
                continue;
            }
            match on == ON.contains(mode) {
                true => self.modes.remove(mode),
                false => self.modes.insert(*mode),
            };
            let action = if on { 'h' } else { 'l' };
            self.out.extend(format!("\x1b[?{mode}{action}").bytes());
        }
    }
}

impl Perform for Passed {
    fn print(&mut self, c: char) {
        self.resetting &= c == ' ';
        self.out.extend(c.encode_utf8(&mut [0; 4]).bytes());
    }

    fn execute(&mut self, byte: u8) {
        match byte {
            b'\n' | b'\r' | b'\t' | 0x08 => self.out.push(byte),
            // The bell is only for live viewers.
            0x07 if !self.strict => self.out.push(byte),
            0x0e | 0x0f if !self.strict => {
                self.charset = true;
                self.out.push(byte);
            }
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: char) {
        let first = params.iter().next().and_then(|parts| parts.first()).copied();
        match (intermediates, action) {
            _ if ignore => {}
            ([], 'm') => self.sequence(params, intermediates, action),
            _ if self.strict || self.resetting => {}
            // The scrollback belongs to the user.
            ([], 'J') if first == Some(3) => {}
            // Movements, erasing, inserting and deleting, scrolling.
            ([], 'A'..='M' | 'P' | 'S' | 'T' | 'X' | 'Z' | '@' | '`' | 'a' | 'd'..='f') => {
                self.sequence(params, intermediates, action);
            }
            ([], 'r') => {
                self.margins = true;
                self.sequence(params, intermediates, action);
            }
            ([b'?'], 'h' | 'l') => self.private_modes(params, action == 'h'),
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], ignore: bool, byte: u8) {
        match (intermediates, byte) {
            ([], b'c') => self.resetting = true,
            _ if ignore || self.strict || self.resetting => {}
            // Index, next line, reverse index, save and restore the cursor.
            ([], b'D' | b'E' | b'M' | b'7' | b'8') => self.out.extend([0x1b, byte]),
            ([], b'=' | b'>') => {
                self.keypad = byte == b'=';
                self.out.extend([0x1b, byte]);
            }
            // Line drawing and back.
            ([b'('], b'0' | b'B') => {
                self.charset = true;
                self.out.extend([0x1b, b'(', byte]);
            }
            _ => {}
        }
    }
}

/// The text of terminal output, without control sequences.
pub fn plain(text: &str) -> String {
    struct Text(String);
    impl Perform for Text {
        fn print(&mut self, c: char) {
            self.0.push(c);
        }
        fn execute(&mut self, byte: u8) {
            if matches!(byte, b'\n' | b'\t') {
                self.0.push(byte.into());
            }
        }
    }
    let mut plain = Text(String::with_capacity(text.len()));
    Parser::new().advance(&mut plain, text.as_bytes());
    plain.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first output of SeaBIOS on a serial console, and of a boot loader.
    const FIRMWARE: &[u8] =
        b"\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS (version 1.16)\r\n\x1b[6n\x1b[?7l Booting\r\n";

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn firmware_leaves_the_screen_alone() {
        let expected = "\x1b[0mSeaBIOS (version 1.16)\r\n Booting\r\n";
        assert_eq!(text(Filter::default().replay(FIRMWARE)), expected);
        assert_eq!(text(Filter::default().live(FIRMWARE)), expected);
        // However it is cut.
        let mut filter = Filter::default();
        let cut: Vec<u8> = FIRMWARE.iter().flat_map(|byte| filter.live(&[*byte])).collect();
        assert_eq!(text(cut), expected);
        assert_eq!(text(filter.restore()), "\x1b[0m");
    }

    #[test]
    fn colours_and_letters_go_through() {
        let line = "\x1b[1;38;5;12mgrün\x1b[0m \u{20ac}\t\u{1f9ff}\r\n";
        assert_eq!(text(Filter::default().replay(line.as_bytes())), line);
        let title = b"\x1b]0;mine\x07a\x1bP1$r\x1b\\b\x1b[>c\x1b[21t\x07";
        assert_eq!(text(Filter::default().live(title)), "ab\x07");
    }

    #[test]
    fn editors_work_and_are_undone() {
        let mut filter = Filter::default();
        let vi = "\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[1;24r\x1b=\x1b[2J\x1b[3;4Hx\x1b[0K\x1b(0q";
        assert_eq!(text(filter.live(vi.as_bytes())), vi.replace("\x1b[?1000h", ""));
        let restored = "\x1b[?25h\x1b[?1049l\x1b7\x1b[r\x1b8\x1b>\x0f\x1b(B\x1b[0m";
        assert_eq!(text(filter.restore()), restored);
        filter.live(b"\x1b[?1049l\x1b[?25h");
        assert!(!text(filter.restore()).contains('?'));
        // The same without a viewer: this terminal is not affected.
        assert_eq!(text(Filter::default().replay(vi.as_bytes())), "xq");
    }

    #[test]
    fn plain_text_has_no_sequences() {
        assert_eq!(
            plain("\x1bc\x1b[?7lone\r\n\x1b]0;t\x07two\x1b[6n\x1b[31m!\x1b[0m"),
            "one\ntwo!"
        );
    }
}
