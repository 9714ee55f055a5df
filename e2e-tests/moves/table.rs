//! The table of the results, in Markdown.

use e2e_tests::support::markdown::grouped;
use e2e_tests::support::move_load::{MoveMethod, Requests, Tally};

/// The fewest requests by name of a seamless move of all Services, none of which may fail.
const REQUESTS: u64 = 40_000;
/// The longest time in milliseconds for which requests to the old address may fail in a seamless move.
const PAUSE: u64 = 1000;

const HEAD: &str = "\
| method | Services | requests by name | failed | longest pause | requests to the old address | failed | longest pause | requests \
through open connections | failed |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";

/// The conditions, a row for each method, the goals, and the errors.
pub fn table(about: &str, results: &[(MoveMethod, usize, Tally)]) -> String {
    let mut lines = vec![about.to_owned(), String::new(), HEAD.to_owned()];
    for (method, services, tally) in results {
        let (by_name, by_address) = (cells(&tally.by_name), cells(&tally.by_address));
        let open = &tally.long_lived;
        let open = format!("{} | {}", grouped(open.requests), grouped(open.failed));
        lines.push(format!("| {} | {services} | {by_name} | {by_address} | {open} |", method.name()));
    }
    let goal = format!("| goal of the seamless move | | {} | 0 | | | | {PAUSE} ms | | 0 |", grouped(REQUESTS));
    lines.extend([goal, String::new()]);
    for (method, _, tally) in results {
        let kinds =
            [("by name", &tally.by_name), ("to the old address", &tally.by_address), ("open", &tally.long_lived)];
        for (kind, requests) in kinds {
            lines.extend(
                requests
                    .errors
                    .iter()
                    .map(|(error, count)| format!("- {}, {kind}: {error}: {}", method.name(), grouped(*count))),
            );
        }
        if *method == MoveMethod::Seamless {
            lines.extend(missed(tally).into_iter().map(|goal| format!("- MISSED: {goal}")));
        }
    }
    lines.join("\n")
}

/// The goals that a seamless move of all Services missed.
pub fn missed(tally: &Tally) -> Vec<&'static str> {
    let goals = [
        (tally.by_name.failed == 0, "no request by name fails"),
        (tally.by_name.requests >= REQUESTS, "enough requests by name"),
        (tally.by_address.longest_pause <= PAUSE, "requests to the old address fail for at most a second"),
        (tally.long_lived.failed == 0, "open connections survive"),
    ];
    goals.into_iter().filter(|(is_met, _)| !is_met).map(|(_, goal)| goal).collect()
}

fn cells(requests: &Requests) -> String {
    format!("{} | {} | {} ms", grouped(requests.requests), grouped(requests.failed), grouped(requests.longest_pause))
}
