//! Time of day as the original programs print it: local time, or UTC if the host has no time zone.
use jiff::Zoned;
use jiff::tz::TimeZone;

/// Formats the current time by a template of strftime(3).
pub(super) fn now(template: &str) -> String {
    let now = Zoned::now();
    let now = if now.time_zone().is_unknown() { now.with_time_zone(TimeZone::UTC) } else { now };
    now.strftime(template).to_string()
}
