//! Lists, numbers and plurals for readers.

use std::fmt::Display;

use indicatif::HumanCount;

pub(crate) fn joined<T: Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

/// The first few items, and how many more there are: each of the others is described elsewhere.
pub(crate) fn first_few(items: impl Iterator<Item = String>, more: impl Fn(usize) -> String) -> String {
    const SHOWN: usize = 3;
    let mut items: Vec<String> = items.collect();
    let left = items.split_off(SHOWN.min(items.len())).len();
    items.extend((left > 0).then(|| more(left)));
    items.join(", ")
}

/// The first three items, and how many more there are.
pub(crate) fn first_three<T: Display>(items: impl ExactSizeIterator<Item = T>) -> String {
    const SHOWN: usize = 3;
    let more = items.len().saturating_sub(SHOWN);
    let names = joined(items.take(SHOWN), ", ");
    if more > 0 { format!("{names} and {more} more") } else { names }
}

/// Such as `1 Service` or `2 Services`.
pub(crate) fn several(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// A number, rounded to a power of two if it is too long to read.
pub(crate) fn rounded(number: u128) -> String {
    const ROUNDED_FROM: u128 = 1 << 32;
    if number < ROUNDED_FROM { number.to_string() } else { format!("2^{:.0}", (number as f64).log2()) }
}

/// A number with commas between its thousands, or a rounded power of ten if it is very large.
pub(crate) fn grouped(number: u128) -> String {
    // The digits of such a number do not matter to readers.
    const ROUNDED_FROM: u64 = 1_000_000_000_000_000;
    match u64::try_from(number) {
        Ok(number) if number < ROUNDED_FROM => HumanCount(number).to_string(),
        _ => format!("{:.1e}", number as f64).replace('e', " × 10^"),
    }
}

/// The share of `part` in `whole`, in thousandths from 0 to 1000. Only 0 gives 0, and only the whole gives 1000.
pub(crate) fn thousandths(part: u128, whole: u128) -> u32 {
    if part == 0 || whole == 0 {
        return 0;
    }
    if part >= whole {
        return 1000;
    }
    ((part as f64 / whole as f64 * 1000.0) as u32).clamp(1, 999)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let rows = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (65_534, "65,534"),
            (1_234_567, "1,234,567"),
            (999_999_999_999_999, "999,999,999,999,999"),
            (1_000_000_000_000_000, "1.0 × 10^15"),
            (u128::from(u64::MAX), "1.8 × 10^19"),
            (9_940_000_000_000_000, "9.9 × 10^15"),
            (9_960_000_000_000_000, "1.0 × 10^16"),
            (u128::MAX, "3.4 × 10^38"),
        ];
        for (number, text) in rows {
            assert_eq!(grouped(number), text, "{number}");
        }
    }

    #[test]
    fn only_zero_gives_0_and_only_the_whole_gives_1000_thousandths() {
        struct Case {
            name: &'static str,
            part: u128,
            whole: u128,
            expected: u32,
        }
        let cases = [
            Case { name: "none", part: 0, whole: 205, expected: 0 },
            Case { name: "none of none", part: 0, whole: 0, expected: 0 },
            Case { name: "a little", part: 1, whole: 20_000, expected: 1 },
            Case { name: "half", part: 100, whole: 200, expected: 500 },
            Case { name: "almost all", part: 19_999, whole: 20_000, expected: 999 },
            Case { name: "all", part: 205, whole: 205, expected: 1000 },
            Case { name: "a little of the largest number", part: 20_000, whole: u128::MAX, expected: 1 },
            Case { name: "half of the largest number, rounded", part: u128::MAX / 2, whole: u128::MAX, expected: 500 },
            Case { name: "almost all of the largest number", part: u128::MAX - 1, whole: u128::MAX, expected: 999 },
        ];
        for Case { name, part, whole, expected } in cases {
            assert_eq!(thousandths(part, whole), expected, "{name}");
        }
    }
}
