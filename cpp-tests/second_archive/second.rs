//! Somebody else's Rust archive: it allocates, formats, panics and catches, so that much of std is in it.

use std::collections::HashMap;
use std::panic;

#[no_mangle]
pub extern "C" fn second_answer(number: u32) -> u32 {
    let outcome = panic::catch_unwind(|| {
        let squares: HashMap<String, u32> = (0..number).map(|n| (format!("{n}"), n * n)).collect();
        squares[&format!("{}", number - 1)]
    });
    outcome.unwrap_or(u32::MAX)
}
