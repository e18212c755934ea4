//! Positions in a text, as errors show them: `FILE:LINE:COLUMN`.

/// Returns line and column of a byte, both from 1; the column is counted in characters.
pub fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.char_indices().take_while(|(at, _)| *at < offset).map(|(_, letter)| letter);
    before.fold((1, 1), |(line, column), letter| if letter == '\n' { (line + 1, 1) } else { (line, column + 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_characters() {
        assert_eq!(line_and_column("a\nä = 1", 5), (2, 3));
        assert_eq!(line_and_column("", 0), (1, 1));
    }
}
