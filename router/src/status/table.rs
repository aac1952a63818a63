//! Columns of text.

use std::fmt::Write as _;

/// How a column stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows under a heading. Text is what the code and the roles' closed sets have: no control characters, one column a character.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(columns: impl IntoIterator<Item = (impl Into<String>, Align)>) -> Self {
        Self {
            columns: columns
                .into_iter()
                .map(|(name, align)| (name.into(), align))
                .collect(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table with its heading, a line each.
    pub(super) fn render(&self) -> String {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = lines.iter().filter_map(|line| line.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for line in lines {
            let mut row = String::from(" ");
            for ((cell, width), (_, align)) in line.iter().zip(&widths).zip(&self.columns) {
                let width = *width;
                // A string takes whatever is written to it.
                let _ = match align {
                    Align::Left => write!(row, " {cell:<width$} "),
                    Align::Right => write!(row, " {cell:>width$} "),
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let mut table = Table::new([("role", Align::Left), ("pid", Align::Right)]);
        assert!(table.is_empty());
        table.row(["listener".to_owned(), "7".to_owned()]);
        table.row(["run".to_owned(), "1234".to_owned()]);
        let expected = "  role       pid\n  listener     7\n  run       1234\n";
        assert_eq!(table.render(), expected);
    }
}
