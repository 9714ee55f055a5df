//! Formats numbers for readers.

/// Numbers from here on are written as a power of ten, because nobody compares their digits.
const LONGEST: u128 = 1_000_000_000_000_000;

/// A number with commas between its thousands, or a rounded power of ten if it is very large.
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

/// The share of `part` in `whole`, in thousandths from 0 to 1000. Only 0 gives 0, and only the whole gives 1000.
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
    fn only_zero_gives_0_and_only_the_whole_gives_1000_thousandths() {
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
