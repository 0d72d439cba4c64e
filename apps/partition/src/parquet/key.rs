//! Values of keys as text: one value, one text, whatever the file that it stands in.
//!
//! It is what the same value is in a CSV file that DuckDB or Spark writes, as far as these agree:
//! so a key has its part whether it comes from Parquet or from text.

use std::fmt::Write as _;
use std::io::Write as _;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal128Type, Decimal256Type, Float16Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};

/// Appends the value of a row, which is not null.
type Append = Box<dyn Fn(usize, &mut Vec<u8>)>;

/// A key's values in a batch.
pub struct Texts {
    values: ArrayRef,
    append: Append,
}

impl std::fmt::Debug for Texts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Texts")
            .field(&self.values.data_type())
            .finish()
    }
}

/// Whether values of this type can be keys, or decide an order: single ones.
pub fn is_single(kind: &DataType) -> bool {
    !kind.is_nested() && !matches!(kind, DataType::Interval(_) | DataType::Duration(_))
}

impl Texts {
    /// Of a column whose type [`is_single`].
    ///
    /// # Errors
    /// A sentence about another type.
    pub fn of(values: &ArrayRef) -> Result<Self, String> {
        Ok(Self {
            append: append(values)?,
            values: values.clone(),
        })
    }

    /// Appends the text of a row's value, nothing for a null; returns whether it is one.
    pub fn push(&self, row: usize, to: &mut Vec<u8>) -> bool {
        let is_null = self.values.is_null(row);
        if !is_null {
            (self.append)(row, to);
        }
        is_null
    }
}

fn append(values: &ArrayRef) -> Result<Append, String> {
    Ok(match values.data_type() {
        DataType::Null => Box::new(|_, _| {}),
        DataType::Boolean => {
            let values = values.as_boolean().clone();
            Box::new(move |row, to| {
                to.extend_from_slice(if values.value(row) { b"true" } else { b"false" });
            })
        }
        DataType::Int8 => numbers::<Int8Type>(values),
        DataType::Int16 => numbers::<Int16Type>(values),
        DataType::Int32 => numbers::<Int32Type>(values),
        DataType::Int64 => numbers::<Int64Type>(values),
        DataType::UInt8 => numbers::<UInt8Type>(values),
        DataType::UInt16 => numbers::<UInt16Type>(values),
        DataType::UInt32 => numbers::<UInt32Type>(values),
        DataType::UInt64 => numbers::<UInt64Type>(values),
        // As a number of 32 bits, which other readers make of it: their text has its digits too.
        DataType::Float16 => each::<Float16Type>(values, |value, to| {
            float(
                value.is_nan(),
                f32::from(value) == 0.0,
                f32::from(value),
                to,
            );
        }),
        DataType::Float32 => each::<Float32Type>(values, |value, to| {
            float(value.is_nan(), value == 0.0, value, to);
        }),
        DataType::Float64 => each::<Float64Type>(values, |value, to| {
            float(value.is_nan(), value == 0.0, value, to);
        }),
        DataType::Utf8 => {
            let values = values.as_string::<i32>().clone();
            Box::new(move |row, to| to.extend_from_slice(values.value(row).as_bytes()))
        }
        DataType::Binary => {
            let values = values.as_binary::<i32>().clone();
            Box::new(move |row, to| to.extend_from_slice(values.value(row)))
        }
        DataType::FixedSizeBinary(_) => {
            let values = values.as_fixed_size_binary().clone();
            Box::new(move |row, to| to.extend_from_slice(values.value(row)))
        }
        DataType::Decimal128(_, scale) => {
            let scale = usize::try_from(*scale).unwrap_or(0);
            each::<Decimal128Type>(values, move |value, to| {
                decimal(value < 0, &value.unsigned_abs().to_string(), scale, to);
            })
        }
        DataType::Decimal256(_, scale) => {
            let scale = usize::try_from(*scale).unwrap_or(0);
            each::<Decimal256Type>(values, move |value, to| {
                let text = value.to_string();
                let digits = text.trim_start_matches('-');
                decimal(digits.len() < text.len(), digits, scale, to);
            })
        }
        DataType::Date32 => each::<Date32Type>(values, |days, to| date(i64::from(days), to)),
        DataType::Date64 => each::<Date64Type>(values, |value, to| {
            date(value.div_euclid(86_400_000), to);
        }),
        DataType::Time32(TimeUnit::Second) => {
            each::<Time32SecondType>(values, |value, to| time(i64::from(value), 1, to))
        }
        DataType::Time32(_) => {
            each::<Time32MillisecondType>(values, |value, to| time(i64::from(value), 1_000, to))
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            each::<Time64MicrosecondType>(values, |value, to| time(value, 1_000_000, to))
        }
        DataType::Time64(_) => {
            each::<Time64NanosecondType>(values, |value, to| time(value, 1_000_000_000, to))
        }
        DataType::Timestamp(TimeUnit::Second, _) => {
            each::<TimestampSecondType>(values, |value, to| timestamp(value, 1, to))
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            each::<TimestampMillisecondType>(values, |value, to| timestamp(value, 1_000, to))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            each::<TimestampMicrosecondType>(values, |value, to| timestamp(value, 1_000_000, to))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            each::<TimestampNanosecondType>(values, |value, to| timestamp(value, 1_000_000_000, to))
        }
        other => return Err(format!("values of {other} are no keys")),
    })
}

fn each<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    text: impl Fn(T::Native, &mut Vec<u8>) + 'static,
) -> Append {
    let values = values.as_primitive::<T>().clone();
    Box::new(move |row, to| text(values.value(row), to))
}

fn numbers<T: ArrowPrimitiveType<Native: std::fmt::Display>>(values: &ArrayRef) -> Append {
    each::<T>(values, |value, to| {
        let _ = write!(to, "{value}");
    })
}

/// The shortest digits that give the value back; all that are no numbers are one, and so are both
/// zeros, which are equal.
fn float(is_nan: bool, is_zero: bool, value: impl std::fmt::Debug, to: &mut Vec<u8>) {
    let _ = match (is_nan, is_zero) {
        (true, _) => to.write_all(b"NaN"),
        (_, true) => to.write_all(b"0.0"),
        _ => write!(to, "{value:?}"),
    };
}

/// As many digits behind the point as the type has.
fn decimal(is_negative: bool, digits: &str, scale: usize, to: &mut Vec<u8>) {
    if is_negative {
        to.push(b'-');
    }
    let mut padded = String::new();
    let _ = write!(padded, "{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = padded.split_at(padded.len() - scale);
    to.extend_from_slice(whole.as_bytes());
    if scale > 0 {
        to.push(b'.');
        to.extend_from_slice(fraction.as_bytes());
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar of all times:
/// years from March on, in eras of 400, whose days are always as many.
fn civil(days: i64) -> (i64, i64, i64) {
    const ERA_DAYS: i64 = 146_097;
    // From 0000-03-01.
    let days = i128::from(days) + 719_468;
    let era = days.div_euclid(i128::from(ERA_DAYS)) as i64;
    let of_era = days.rem_euclid(i128::from(ERA_DAYS)) as i64;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

fn date(days: i64, to: &mut Vec<u8>) {
    let (year, month, day) = civil(days);
    let _ = match year {
        0..=9999 => write!(to, "{year:04}-{month:02}-{day:02}"),
        _ => write!(to, "{year:+05}-{month:02}-{day:02}"),
    };
}

/// `HH:MM:SS`, and what is left of a second without zeros at its end.
fn time(value: i64, per_second: i64, to: &mut Vec<u8>) {
    let (seconds, rest) = (value.div_euclid(per_second), value.rem_euclid(per_second));
    let (minutes, seconds) = (seconds.div_euclid(60), seconds.rem_euclid(60));
    let (hours, minutes) = (minutes.div_euclid(60), minutes.rem_euclid(60));
    let _ = write!(to, "{hours:02}:{minutes:02}:{seconds:02}");
    if rest > 0 {
        let digits = per_second.ilog10() as usize;
        let fraction = format!("{rest:0digits$}");
        to.push(b'.');
        to.extend_from_slice(fraction.trim_end_matches('0').as_bytes());
    }
}

/// `YYYY-MM-DD HH:MM:SS`, of an instant in UTC.
fn timestamp(value: i64, per_second: i64, to: &mut Vec<u8>) {
    let per_day = 86_400 * per_second;
    date(value.div_euclid(per_day), to);
    to.push(b' ');
    time(value.rem_euclid(per_day), per_second, to);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::*;

    use super::*;

    type I256 = <Decimal256Type as ArrowPrimitiveType>::Native;

    fn texts(values: ArrayRef) -> Vec<String> {
        let texts = Texts::of(&values).unwrap();
        let text = |row| {
            let mut to = Vec::new();
            match texts.push(row, &mut to) {
                true => "(null)".to_owned(),
                false => String::from_utf8(to).unwrap(),
            }
        };
        (0..values.len()).map(text).collect()
    }

    #[test]
    fn values_are_texts_of_their_own() {
        let cases: Vec<(ArrayRef, &[&str])> = vec![
            (
                Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
                &["true", "(null)", "false"],
            ),
            (Arc::new(Int8Array::from(vec![-128, 127])), &["-128", "127"]),
            (
                Arc::new(UInt64Array::from(vec![u64::MAX])),
                &["18446744073709551615"],
            ),
            (
                Arc::new(Float64Array::from(vec![
                    0.1,
                    1.0,
                    -0.0,
                    0.0,
                    1e300,
                    -f64::NAN,
                    f64::INFINITY,
                ])),
                &["0.1", "1.0", "0.0", "0.0", "1e300", "NaN", "inf"],
            ),
            (
                Arc::new(Float32Array::from(vec![0.1, 16_777_216.0])),
                &["0.1", "16777216.0"],
            ),
            (Arc::new(StringArray::from(vec!["", "ü,"])), &["", "ü,"]),
            (
                Arc::new(
                    Decimal128Array::from(vec![-5, 1234, 0])
                        .with_precision_and_scale(10, 2)
                        .unwrap(),
                ),
                &["-0.05", "12.34", "0.00"],
            ),
            (
                Arc::new(
                    Decimal256Array::from(vec![I256::from_i128(-1200)])
                        .with_precision_and_scale(50, 3)
                        .unwrap(),
                ),
                &["-1.200"],
            ),
            (
                Arc::new(Date32Array::from(vec![
                    0, -1, 19_782, 11_016, -719_528, -719_529, 2_932_896, 2_932_897,
                ])),
                &[
                    "1970-01-01",
                    "1969-12-31",
                    "2024-02-29",
                    "2000-02-29",
                    "0000-01-01",
                    "-0001-12-31",
                    "9999-12-31",
                    "+10000-01-01",
                ],
            ),
            (
                Arc::new(TimestampMillisecondArray::from(vec![
                    0,
                    -1,
                    1_709_210_096_500,
                ])),
                &[
                    "1970-01-01 00:00:00",
                    "1969-12-31 23:59:59.999",
                    "2024-02-29 12:34:56.5",
                ],
            ),
            (
                Arc::new(TimestampNanosecondArray::from(vec![1, i64::MIN])),
                &[
                    "1970-01-01 00:00:00.000000001",
                    "1677-09-21 00:12:43.145224192",
                ],
            ),
            (
                Arc::new(Time64MicrosecondArray::from(vec![86_399_999_999])),
                &["23:59:59.999999"],
            ),
            (Arc::new(NullArray::new(1)), &[""]),
        ];
        for (values, expected) in cases {
            let kind = values.data_type().clone();
            assert_eq!(texts(values), expected, "{kind}");
        }
    }

    #[test]
    fn days_are_those_of_a_calendar_that_is_counted() {
        let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let mut next = (1600, 1, 1);
        for days in -135_140..135_140 {
            assert_eq!(civil(days), next);
            let (year, month, day) = next;
            let length = match month {
                2 => 28 + i64::from(leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            next = match (day == length, month) {
                (false, _) => (year, month, day + 1),
                (true, 12) => (year + 1, 1, 1),
                (true, _) => (year, month + 1, 1),
            };
        }
        for days in [i64::MIN, i64::MAX] {
            civil(days);
        }
    }
}
