//! Parts of a report on a screen: lines that are kept or left out together, and the choice of parts when there is no
//! room.

/// Lines that are kept or left out together.
pub struct ReportPart<Rank> {
    /// Priority of the part; the lowest is left out first.
    pub priority: Rank,
    /// Set if an empty line comes before it, as long as there is room for one.
    pub has_gap: bool,
    /// Lines of text.
    pub lines: Vec<String>,
}

/// Number of lines of all parts, empty ones included.
pub fn lines_in<Rank>(parts: &[ReportPart<Rank>]) -> usize {
    parts.iter().map(|part| part.lines.len() + usize::from(part.has_gap)).sum()
}

/// Leaves out empty lines, then the parts of the lowest rank, until the rest has room; parts of rank `always` stay.
/// Returns whether more than empty lines was left out.
pub fn fit<Rank: Copy + Ord>(parts: &mut Vec<ReportPart<Rank>>, room: usize, always: Rank) -> bool {
    let mut is_cut = false;
    while lines_in(parts) > room {
        if let Some(part) = parts.iter_mut().rev().find(|part| part.has_gap) {
            part.has_gap = false;
            continue;
        }
        let least = parts.iter().map(|part| part.priority).min().filter(|rank| *rank < always);
        let Some(least) = least else { break };
        parts.retain(|part| part.priority != least);
        is_cut = true;
    }
    is_cut
}

/// The lines in their order.
pub fn lines<Rank>(parts: Vec<ReportPart<Rank>>) -> impl Iterator<Item = String> {
    parts.into_iter().flat_map(|part| part.has_gap.then(String::new).into_iter().chain(part.lines))
}
