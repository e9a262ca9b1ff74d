//! What commands print.

use std::io::{self, Write as _};

use crate::error::{Context as _, Error};

/// Prints to standard output. Whoever has read enough (`head`) may close it.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    print_bytes(text.as_bytes())
}

/// Prints bytes as they are.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a JSON array on one line.
pub(crate) fn print_json<T: serde::Serialize>(rows: &[T]) -> Result<(), Error> {
    let mut text = serde_json::to_string(rows).context("cannot write JSON")?;
    text.push('\n');
    print(&text)
}

/// Rows in aligned columns; the last one is not padded.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    Table::new(head).page(rows)
}

/// A table that is printed page by page. Columns only become wider.
pub(crate) struct Table {
    head: Option<Vec<String>>,
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            widths: head.iter().map(|cell| cell.chars().count()).collect(),
            head: Some(head.iter().map(|cell| (*cell).to_owned()).collect()),
        }
    }

    /// More rows; the head stands before the first.
    pub(crate) fn page(&mut self, rows: &[Vec<String>]) -> String {
        let rows: Vec<Vec<_>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| printable(cell)).collect())
            .collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let head = self.head.take();
        let lines = head.iter().chain(&rows);
        lines.fold(String::new(), |mut text, row: &Vec<String>| {
            let cells = row.iter().zip(&self.widths);
            let line = cells.fold(String::new(), |line, (cell, width)| {
                format!("{line}{cell:<width$}  ")
            });
            text.push_str(line.trim_end());
            text.push('\n');
            text
        })
    }
}

/// Text from elsewhere without what a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_escape_sequences_are_defused() {
        let rows = [
            vec!["a".to_owned(), "long cell".to_owned(), "x".to_owned()],
            vec!["\u{1b}[2J".to_owned(), "b".to_owned(), String::new()],
        ];
        assert_eq!(
            table(&["ID", "TEXT", "END"], &rows),
            "ID    TEXT       END\n\
             a     long cell  x\n\
             \u{fffd}[2J  b\n"
        );
    }

    #[test]
    fn a_second_page_has_no_head_and_columns_only_become_wider() {
        let row = |id: &str| vec![id.to_owned(), "x".to_owned()];
        let mut table = Table::new(&["ID", "END"]);
        assert_eq!(table.page(&[row("abc")]), "ID   END\nabc  x\n");
        assert_eq!(table.page(&[row("a"), row("abcd")]), "a     x\nabcd  x\n");
        assert_eq!(table.page(&[]), "");
    }
}
