//! What commands print.

use std::io::{self, Write as _};

use crate::error::{Context as _, Error};

/// Prints to standard output. Whoever has read enough (`head`) may close it.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
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
    let mut widths: Vec<_> = head.iter().map(|cell| cell.chars().count()).collect();
    let rows: Vec<Vec<_>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    let lines = std::iter::once(&head).chain(&rows);
    lines.fold(String::new(), |mut text, row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let line = cells.fold(String::new(), |line, (cell, width)| {
            format!("{line}{cell:<width$}  ")
        });
        text.push_str(line.trim_end());
        text.push('\n');
        text
    })
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
}
