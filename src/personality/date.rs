//! The time of day as the originals have it: local, or UTC where nobody says where this is.
use jiff::Zoned;
use jiff::tz::TimeZone;

/// Now, written by a template of strftime(3).
pub(super) fn now(template: &str) -> String {
    let now = Zoned::now();
    let now = if now.time_zone().is_unknown() { now.with_time_zone(TimeZone::UTC) } else { now };
    now.strftime(template).to_string()
}
