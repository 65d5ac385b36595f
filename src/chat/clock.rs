#![forbid(unsafe_code)]
//! `strftime` for templates that write a date: UTC, English names, the directives that templates use.
//!
//! # Source
//! Days to date in the proleptic Gregorian calendar: 400 years are 146 097 days, and a year that begins in March has its leap day last.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

struct Date {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    /// From 1.
    day_of_year: i64,
    /// 0 is Sunday.
    weekday: i64,
}

impl Date {
    fn of_day(days_since_1970: i64) -> Self {
        // Day 0 of this count is 1 March of the year 0.
        let days = days_since_1970 + 719_468;
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * from_march + 2) / 153;
        let day = from_march - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        // 1 March is day 60 of the year, or 61.
        let day_of_year = if month > 2 { from_march + 60 + i64::from(is_leap) } else { from_march - 305 };
        Self { year, month, day, day_of_year, weekday: (days_since_1970 + 4).rem_euclid(7) }
    }
}

/// The time `unix_s` in this format; none for a directive that is not known or a time outside of years 1 to 9999.
pub(super) fn format(unix_s: i64, format: &str) -> Option<String> {
    let date = Date::of_day(unix_s.div_euclid(86_400));
    if !(1..=9999).contains(&date.year) {
        return None;
    }
    let second_of_day = unix_s.rem_euclid(86_400);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let half_day_hour = (hour + 11) % 12 + 1;
    let (month, day) = (MONTHS[(date.month - 1) as usize], DAYS[date.weekday as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next()?;
        let is_bare = directive == '-';
        if is_bare {
            directive = chars.next()?;
        }
        let number = match directive {
            'Y' => Some((date.year, 4)),
            'y' => Some((date.year % 100, 2)),
            'm' => Some((date.month, 2)),
            'd' => Some((date.day, 2)),
            'j' => Some((date.day_of_year, 3)),
            'H' => Some((hour, 2)),
            'I' => Some((half_day_hour, 2)),
            'M' => Some((minute, 2)),
            'S' => Some((second, 2)),
            _ => None,
        };
        match (number, directive) {
            (Some((number, _)), _) if is_bare => out += &number.to_string(),
            (Some((number, width)), _) => out += &format!("{number:0width$}"),
            _ if is_bare => return None,
            (None, 'B') => out += month,
            (None, 'b' | 'h') => out += month.get(..3)?,
            (None, 'A') => out += day,
            (None, 'a') => out += day.get(..3)?,
            (None, 'p') => out += if hour < 12 { "AM" } else { "PM" },
            (None, 'e') => out += &format!("{:2}", date.day),
            (None, 'F') => out += &format!("{:04}-{:02}-{:02}", date.year, date.month, date.day),
            (None, 'T') => out += &format!("{hour:02}:{minute:02}:{second:02}"),
            (None, 'Z') => out += "UTC",
            (None, '%') => out.push('%'),
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_are_written_as_date_writes_them() {
        for (unix_s, expected) in [
            (0, "Thursday Thu 01 January Jan 1970 70 001 00:00:00 12 AM 1"),
            (951_782_400, "Tuesday Tue 29 February Feb 2000 00 060 00:00:00 12 AM 29"),
            (1_721_952_000, "Friday Fri 26 July Jul 2024 24 208 00:00:00 12 AM 26"),
            (1_735_689_599, "Tuesday Tue 31 December Dec 2024 24 366 23:59:59 11 PM 31"),
            (-1, "Wednesday Wed 31 December Dec 1969 69 365 23:59:59 11 PM 31"),
            (4_107_596_400, "Monday Mon 01 March Mar 2100 00 060 15:00:00 03 PM 1"),
        ] {
            assert_eq!(format(unix_s, "%A %a %d %B %b %Y %y %j %H:%M:%S %I %p %-d").as_deref(), Some(expected));
        }
    }

    #[test]
    fn unknown_directives_and_far_times_are_refused() {
        assert_eq!(format(0, "%Q"), None);
        assert_eq!(format(0, "%"), None);
        assert_eq!(format(0, "%-B"), None);
        assert_eq!(format(i64::MAX, "%Y"), None);
        assert_eq!(format(i64::MIN, "%Y"), None);
    }

    #[test]
    fn days_follow_each_other() {
        let mut last = Date::of_day(-800_000);
        for day in -799_999..800_000 {
            let date = Date::of_day(day);
            let next_day = (date.year, date.month, date.day) == (last.year, last.month, last.day + 1);
            let next_month = (date.year, date.month, date.day) == (last.year, last.month + 1, 1);
            let next_year = (date.year, date.month, date.day) == (last.year + 1, 1, 1) && last.month == 12;
            assert!(next_day || next_month || next_year, "day {day}");
            assert_eq!(date.day_of_year, if next_year { 1 } else { last.day_of_year + 1 }, "day {day}");
            assert_eq!(date.weekday, (last.weekday + 1) % 7);
            last = date;
        }
    }
}
