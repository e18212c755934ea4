//! Chooses the parts of a screen report that fit into the available lines.

/// Lines that a report keeps or leaves out together.
pub struct ReportPart<Rank> {
    /// Parts with the lowest priority are left out first.
    pub priority: Rank,
    /// Set if an empty line comes before the part as long as there is room for it.
    pub has_gap: bool,
    pub lines: Vec<String>,
}

/// Returns the number of lines of all parts, including the empty lines between them.
pub fn lines_in<Rank>(parts: &[ReportPart<Rank>]) -> usize {
    parts.iter().map(|part| part.lines.len() + usize::from(part.has_gap)).sum()
}

/// Leaves out empty lines, and then the parts with the lowest priority, until the rest fits into
/// `room` lines. Parts with the priority `always` stay. Returns true if more than empty lines was
/// left out.
pub fn fit<Rank: Copy + Ord>(parts: &mut Vec<ReportPart<Rank>>, room: usize, always: Rank) -> bool {
    let mut is_cut = false;
    while lines_in(parts) > room {
        if let Some(part) = parts.iter_mut().rev().find(|part| part.has_gap) {
            part.has_gap = false;
            continue;
        }
        let lowest = parts.iter().map(|part| part.priority).min().filter(|rank| *rank < always);
        let Some(lowest) = lowest else { break };
        parts.retain(|part| part.priority != lowest);
        is_cut = true;
    }
    is_cut
}

pub fn lines<Rank>(parts: Vec<ReportPart<Rank>>) -> impl Iterator<Item = String> {
    parts.into_iter().flat_map(|part| part.has_gap.then(String::new).into_iter().chain(part.lines))
}
