//! Tables, as wide as the terminal; elsewhere as wide as their contents.

use std::io::{self, IsTerminal};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use rustix::termios::tcgetwinsize;

/// Columns of the terminal that is standard output; `None` if it is not a terminal, and nothing
/// must be cut.
pub fn terminal_width() -> Option<u16> {
    let out = io::stdout();
    let size = out.is_terminal().then(|| tcgetwinsize(&out).ok()).flatten()?;
    Some(size.ws_col).filter(|columns| *columns > 0)
}

/// Rows below a head, in columns two spaces apart. `right` are the columns with numbers, which are
/// aligned on the right. In a terminal cells are broken into lines if the table is too wide for it.
pub fn table(
    head: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    laid_out(head, right, rows, terminal_width())
}

fn laid_out(
    head: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
    width: Option<u16>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_content_arrangement(match width {
        Some(_) => ContentArrangement::Dynamic,
        None => ContentArrangement::Disabled,
    });
    if let Some(width) = width {
        table.set_width(width);
    }
    table.set_header(head.iter().copied()).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(width: Option<u16>) -> String {
        let row = |name: &str, count: u32| vec![name.to_owned(), count.to_string(), "x".repeat(30)];
        let rows = [row("one", 7), row("eleven", 11000)];
        laid_out(&["name", "count", "text"], &[1], rows, width)
    }

    #[test]
    fn columns_stand_below_each_other() {
        let long = "x".repeat(30);
        let expected =
            format!("name    count  text\none         7  {long}\neleven  11000  {long}\n");
        assert_eq!(example(None), expected);
        assert_eq!(example(Some(80)), expected);
    }

    #[test]
    fn narrow_terminal_is_not_overrun() {
        let text = example(Some(30));
        assert!(text.lines().all(|line| line.chars().count() <= 30), "{text}");
        // One is in the head.
        assert_eq!(text.matches('x').count(), 61, "{text}");
    }
}
