//! Numbers for people.

/// More digits than these are written as a power of ten: nobody compares longer ones.
const LONGEST: u128 = 1_000_000_000_000_000;

/// A number with its thousands apart, or, where it is very large, about.
pub(super) fn grouped(number: u128) -> String {
    if number >= LONGEST {
        return format!("{:.1e}", number as f64).replace('e', " × 10^");
    }
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How much of the whole a part is, in thousandths; something is never nothing, and what is not all is
/// never all.
pub(super) fn thousandths(part: u128, whole: u128) -> u32 {
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
    fn shares_tell_nothing_from_something_and_all_from_almost() {
        let rows = [
            ("nothing", 0, 205, 0),
            ("of nothing", 0, 0, 0),
            ("a little", 1, 20_000, 1),
            ("half", 100, 200, 500),
            ("almost all", 19_999, 20_000, 999),
            ("all", 205, 205, 1000),
            ("little of very much", 20_000, u128::MAX, 1),
            ("half of very much, which is counted roughly", u128::MAX / 2, u128::MAX, 500),
            ("almost all of very much", u128::MAX - 1, u128::MAX, 999),
        ];
        for (name, part, whole, expected) in rows {
            assert_eq!(thousandths(part, whole), expected, "{name}");
        }
    }
}
