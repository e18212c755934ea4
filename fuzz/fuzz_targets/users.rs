//! Any text as a file of users: what is wrong with it, or users who are known by what the file says.
#![no_main]
#[path = "../../src/users.rs"]
#[allow(dead_code)] // a part of it is the program's
mod users;

use libfuzzer_sys::fuzz_target;
use users::Users;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Users::parse(text) {
        Ok(_) => {}
        Err(why) => assert!(!why.to_string().is_empty()),
    }
});
