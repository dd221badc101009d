//! Numbers on the command line: what a wrong one should have been is said, with its unit.

/// Returns a parser of whole numbers from `least` to `most`; `of` names their unit, if they have one.
pub fn whole<T: TryFrom<u64>>(
    of: &'static str,
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let of = if of.is_empty() { String::new() } else { format!(" of {of}") };
            format!("{text:?} is not a whole number{of} from {least} to {most}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_is_answered_with_the_right_ones() {
        let hold = whole::<u64>("milliseconds", 0, 60_000);
        assert_eq!(hold("0"), Ok(0));
        assert_eq!(hold("60000"), Ok(60_000));
        for wrong in ["x", "", "-1", "60001", "1.5", "99999999999999999999999"] {
            let said = format!("{wrong:?} is not a whole number of milliseconds from 0 to 60000");
            assert_eq!(hold(wrong), Err(said));
        }
        let said = Err("\"100\" is not a whole number from 1 to 99".to_owned());
        assert_eq!(whole::<u8>("", 1, 99)("100"), said);
    }
}
