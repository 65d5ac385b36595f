#![forbid(unsafe_code)]
//! The bytes of a payload: postcard 1.x, written and read without an intermediate form (W-10 .. W-14).
//!
//! ```text
//! u8, i8            one byte                     f32              four bytes, little-endian
//! bool              0 or 1                       [u8; 32]         32 bytes
//! u16 u32 u64       7 bits a byte, low first     Vec, String      length, then the elements
//! i16 i32 i64       zigzag, then as above        Option           0, or 1 and the value
//! struct            its fields, in order         enum             number of the variant, then its fields
//! ```
//!
//! Reading goes into a value that is there already, so that its vectors keep their memory from frame to frame.
//!
//! # Invariants
//! - Whatever the bytes are, reading ends in a value or a [`PayloadError`] (W-12).
//! - A list is only made room for when the payload has bytes enough for as many elements as it claims, and all lists together take at
//!   most [`MEMORY_PER_BYTE`] times the payload's length and [`MEMORY_AT_LEAST`] (W-14).
//! - Bytes behind the last field are nobody's business (W-11).

/// Bytes of memory that the lists of a payload may take for each of its bytes. A token takes four; what takes more (an empty text is one byte
/// there and three words here) comes in lists that are short.
pub const MEMORY_PER_BYTE: usize = 4;
/// Bytes that they may take however short the payload is.
pub const MEMORY_AT_LEAST: usize = 1 << 20;

/// What is wrong with a payload (W-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// It ends inside a field, or claims more elements than it has bytes for.
    #[error("the payload ends early")]
    Short,
    /// Its lists would take more memory than its length justifies (W-14).
    #[error("the lists of the payload take too much memory")]
    Heavy,
    /// A number is longer than its type, or does not fit it.
    #[error("a varint does not fit its type")]
    Varint,
    /// A bool or an option begins with something other than 0 and 1.
    #[error("byte {got} where 0 or 1 belongs")]
    Tag {
        /// The byte.
        got: u8,
    },
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Utf8,
    /// An enum has no such variant.
    #[error("variant {got} is not known")]
    Variant {
        /// Its number.
        got: u32,
    },
}

/// What is left of a payload.
#[derive(Clone, Debug)]
pub struct Reader<'p> {
    left: &'p [u8],
    /// Bytes of memory that lists may still take.
    memory: usize,
}

impl<'p> Reader<'p> {
    /// All of `payload`.
    pub fn new(payload: &'p [u8]) -> Self {
        Self { left: payload, memory: payload.len().saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_AT_LEAST) }
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// `Short`.
    pub fn bytes(&mut self, count: usize) -> Result<&'p [u8], PayloadError> {
        let (bytes, left) = self.left.split_at_checked(count).ok_or(PayloadError::Short)?;
        self.left = left;
        Ok(bytes)
    }

    /// The next value.
    ///
    /// # Errors
    /// As [`Wire::get`].
    pub fn take<T: Wire>(&mut self) -> Result<T, PayloadError> {
        let mut value = T::default();
        value.get(self)?;
        Ok(value)
    }

    fn byte(&mut self) -> Result<u8, PayloadError> {
        let (&byte, left) = self.left.split_first().ok_or(PayloadError::Short)?;
        self.left = left;
        Ok(byte)
    }

    /// A varint of at most `bits` bits.
    fn varint(&mut self, bits: u32) -> Result<u64, PayloadError> {
        let mut value = 0u64;
        for shift in (0..bits).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                // The last byte may only hold the bits that the type still has.
                let room = bits - shift;
                return if room < 7 && byte >> room != 0 { Err(PayloadError::Varint) } else { Ok(value) };
            }
        }
        Err(PayloadError::Varint)
    }

    /// The length of a list whose elements take `least_bytes` or more (W-14).
    fn length(&mut self, least_bytes: usize) -> Result<usize, PayloadError> {
        let claimed = usize::try_from(self.varint(64)?).map_err(|_| PayloadError::Short)?;
        let bytes = claimed.checked_mul(least_bytes).ok_or(PayloadError::Short)?;
        if bytes > self.left.len() { Err(PayloadError::Short) } else { Ok(claimed) }
    }

    /// The length of a list of `T`, whose memory is counted.
    fn list<T: Wire>(&mut self) -> Result<usize, PayloadError> {
        let count = self.length(T::LEAST_BYTES)?;
        let bytes = count.checked_mul(size_of::<T>()).ok_or(PayloadError::Heavy)?;
        self.memory = self.memory.checked_sub(bytes).ok_or(PayloadError::Heavy)?;
        Ok(count)
    }

    /// The number of an enum's variant.
    pub(super) fn variant(&mut self) -> Result<u32, PayloadError> {
        // The number was read with 32 bits.
        Ok(self.varint(32)? as u32)
    }
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A value that a payload can hold.
pub trait Wire: Default {
    /// The fewest bytes that a value takes; at least 1, so that a list is never longer than its payload.
    const LEAST_BYTES: usize;

    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads the next value in place of this one, whose memory is used again.
    ///
    /// # Errors
    /// A [`PayloadError`]; the value is then neither the old nor the new one.
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError>;

    /// Appends the bytes of all `values`, without a length.
    fn put_all(values: &[Self], out: &mut Vec<u8>) {
        for value in values {
            value.put(out);
        }
    }

    /// Reads `count` values in place of those that `values` holds.
    ///
    /// # Errors
    /// As [`Wire::get`].
    fn get_all(values: &mut Vec<Self>, count: usize, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        values.truncate(count);
        for value in values.iter_mut() {
            value.get(reader)?;
        }
        values.reserve_exact(count - values.len());
        while values.len() < count {
            values.push(reader.take()?);
        }
        Ok(())
    }
}

/// The value at the front of `payload`.
///
/// # Errors
/// As [`Wire::get`].
pub fn decode<T: Wire>(payload: &[u8]) -> Result<T, PayloadError> {
    Reader::new(payload).take()
}

impl Wire for u8 {
    const LEAST_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        *self = reader.byte()?;
        Ok(())
    }
    fn put_all(values: &[Self], out: &mut Vec<u8>) {
        out.extend_from_slice(values);
    }
    fn get_all(values: &mut Vec<Self>, count: usize, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        values.clear();
        values.extend_from_slice(reader.bytes(count)?);
        Ok(())
    }
}

impl Wire for bool {
    const LEAST_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        *self = match reader.byte()? {
            0 => false,
            1 => true,
            got => return Err(PayloadError::Tag { got }),
        };
        Ok(())
    }
}

macro_rules! unsigned {
    ($($type:ty),*) => { $(
        impl Wire for $type {
            const LEAST_BYTES: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                put_varint(u64::from(*self), out);
            }
            fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
                // `varint` read no more bits than the type has.
                *self = reader.varint(<$type>::BITS)? as $type;
                Ok(())
            }
        }
    )* };
}
unsigned!(u16, u32, u64);

macro_rules! signed {
    ($($type:ty, $bits:ty);*) => { $(
        impl Wire for $type {
            const LEAST_BYTES: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                (((*self << 1) ^ (*self >> (<$type>::BITS - 1))) as $bits).put(out);
            }
            fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
                let zigzag: $bits = reader.take()?;
                *self = (zigzag >> 1) as $type ^ -((zigzag & 1) as $type);
                Ok(())
            }
        }
    )* };
}
signed!(i32, u32; i64, u64);

impl Wire for f32 {
    const LEAST_BYTES: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        let bytes = reader.bytes(4)?.try_into().map_err(|_| PayloadError::Short)?;
        *self = Self::from_le_bytes(bytes);
        Ok(())
    }
}

impl Wire for [u8; 32] {
    const LEAST_BYTES: usize = 32;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        *self = reader.bytes(32)?.try_into().map_err(|_| PayloadError::Short)?;
        Ok(())
    }
}

impl Wire for String {
    const LEAST_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.len() as u64, out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        let count = reader.length(1)?;
        let text = core::str::from_utf8(reader.bytes(count)?).map_err(|_| PayloadError::Utf8)?;
        self.clear();
        self.push_str(text);
        Ok(())
    }
}

impl<T: Wire> Wire for Vec<T> {
    const LEAST_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.len() as u64, out);
        T::put_all(self, out);
    }
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        let count = reader.list::<T>()?;
        T::get_all(self, count, reader)
    }
}

impl<T: Wire> Wire for Option<T> {
    const LEAST_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
        *self = match reader.byte()? {
            0 => None,
            1 => Some(reader.take()?),
            got => return Err(PayloadError::Tag { got }),
        };
        Ok(())
    }
}

/// Declares structs whose payload is their fields, in order.
macro_rules! wire_structs {
    ($( $(#[$meta:meta])* $name:ident { $( $(#[$field_meta:meta])* $field:ident: $type:ty ),* $(,)? } )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        #[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        impl Wire for $name {
            const LEAST_BYTES: usize = 0 $( + <$type as Wire>::LEAST_BYTES )*;
            fn put(&self, out: &mut Vec<u8>) {
                $( self.$field.put(out); )*
            }
            fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
                $( self.$field.get(reader)?; )*
                Ok(())
            }
        }
    )* };
}

/// Declares enums whose payload is a number and the fields of that variant; a value that is none yet is the one named first.
macro_rules! wire_enums {
    ($( $(#[$meta:meta])* $name:ident = $default:expr => {
        $( $(#[$variant_meta:meta])* $number:literal $variant:ident
            $( { $( $(#[$field_meta:meta])* $field:ident: $type:ty ),* $(,)? } )? $( ($inner:ident: $inner_type:ty) )? ),* $(,)?
    } )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        #[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
        #[allow(clippy::large_enum_variant, reason = "one value at a time, read in place and dropped when it was handled")]
        pub enum $name {
            $( $(#[$variant_meta])* $variant $( { $( $(#[$field_meta])* $field: $type ),* } )? $( ($inner_type) )?, )*
        }

        impl Default for $name {
            fn default() -> Self {
                $default
            }
        }

        impl Wire for $name {
            const LEAST_BYTES: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $( Self::$variant $( { $( $field ),* } )? $( ($inner) )? => {
                        u32::put(&$number, out);
                        $( $( $field.put(out); )* )?
                        $( $inner.put(out); )?
                    } )*
                }
            }
            fn get(&mut self, reader: &mut Reader<'_>) -> Result<(), PayloadError> {
                *self = match reader.variant()? {
                    $( $number => Self::$variant
                        $( { $( $field: reader.take::<$type>()? ),* } )? $( (reader.take::<$inner_type>()?) )?, )*
                    got => return Err(PayloadError::Variant { got }),
                };
                Ok(())
            }
        }
    )* };
}
pub(super) use {wire_enums, wire_structs};

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<T: Wire>(value: T) -> Vec<u8> {
        let mut out = Vec::new();
        value.put(&mut out);
        out
    }

    #[test]
    fn numbers_are_as_the_contract_writes_them() {
        assert_eq!(bytes(-106i32), [0xD3, 0x01]);
        assert_eq!(bytes(300u16), [0xAC, 0x02]);
        assert_eq!(bytes(u64::MAX).len(), 10);
        assert_eq!(bytes(i64::MIN), bytes(u64::MAX));
        for value in [0, 1, -1, i32::MAX, i32::MIN, 63, 64, -64, -65] {
            assert_eq!(decode::<i32>(&bytes(value)), Ok(value));
        }
    }

    /// W-12: a varint is neither longer nor larger than its type.
    #[test]
    fn varint_too_large_for_its_type_is_an_error() {
        assert_eq!(decode::<u16>(&[0xFF, 0xFF, 0x03]), Ok(u16::MAX));
        for bad in [&[0xFF, 0xFF, 0x04][..], &[0xFF, 0xFF, 0x83, 0x00], &[0x80, 0x80, 0x80]] {
            assert_eq!(decode::<u16>(bad), Err(PayloadError::Varint));
        }
        assert_eq!(decode::<u32>(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]), Ok(u32::MAX));
        assert_eq!(decode::<u32>(&[0xFF, 0xFF, 0xFF, 0xFF, 0x1F]), Err(PayloadError::Varint));
        let mut ten = [0xFF; 10];
        ten[9] = 1;
        assert_eq!(decode::<u64>(&ten), Ok(u64::MAX));
        ten[9] = 2;
        assert_eq!(decode::<u64>(&ten), Err(PayloadError::Varint));
        assert_eq!(decode::<u64>(&[0x80]), Err(PayloadError::Short));
    }

    /// W-12.
    #[test]
    fn bad_tags_texts_and_early_ends_are_errors() {
        assert_eq!(decode::<bool>(&[2]), Err(PayloadError::Tag { got: 2 }));
        assert_eq!(decode::<Option<u8>>(&[2, 1]), Err(PayloadError::Tag { got: 2 }));
        assert_eq!(decode::<String>(&[2, 0xC3, 0x28]), Err(PayloadError::Utf8));
        assert_eq!(decode::<[u8; 32]>(&[0; 31]), Err(PayloadError::Short));
        assert_eq!(decode::<f32>(&[0; 3]), Err(PayloadError::Short));
        assert_eq!(decode::<u8>(&[]), Err(PayloadError::Short));
    }

    /// W-14: sixteen mebibytes of empty texts would be four hundred here.
    #[test]
    fn lists_take_no_more_memory_than_their_payload_justifies() {
        let empty_texts = |count: usize| {
            let mut payload = bytes(count as u64);
            payload.resize(payload.len() + count, 0);
            payload
        };
        let most = MEMORY_AT_LEAST / (size_of::<String>() - MEMORY_PER_BYTE);
        assert_eq!(decode::<Vec<String>>(&empty_texts(most)).map(|texts| texts.len()), Ok(most));
        let mut texts: Vec<String> = Vec::new();
        for count in [most + 100, 1 << 24] {
            assert_eq!(texts.get(&mut Reader::new(&empty_texts(count))), Err(PayloadError::Heavy));
            assert_eq!(texts.capacity(), 0, "nothing was made room for");
        }
        // Many small lists count together.
        let inner = empty_texts(most / 3);
        let nested = |lists: u64| [bytes(lists), inner.repeat(lists as usize)].concat();
        assert!(decode::<Vec<Vec<String>>>(&nested(2)).is_ok());
        assert_eq!(decode::<Vec<Vec<String>>>(&nested(4)), Err(PayloadError::Heavy));
        // A whole frame of tokens is what it is.
        let mut tokens = bytes(1u64 << 23);
        tokens.resize(tokens.len() + (1 << 23), 1);
        assert_eq!(decode::<Vec<u32>>(&tokens).map(|tokens| tokens.len()), Ok(1 << 23));
    }

    /// W-14: a claim that the payload cannot back is refused before memory is taken.
    #[test]
    fn length_beyond_the_payload_takes_no_memory() {
        let mut claim = bytes(u64::MAX / 64);
        claim.extend([0; 100]);
        let mut list: Vec<[u8; 32]> = Vec::new();
        assert_eq!(list.get(&mut Reader::new(&claim)), Err(PayloadError::Short));
        assert_eq!(list.capacity(), 0);
        let mut four = bytes(4u64);
        four.extend([7; 127]);
        assert_eq!(list.get(&mut Reader::new(&four)), Err(PayloadError::Short));
        assert_eq!(list.capacity(), 0, "one byte is missing");
        four.push(7);
        assert_eq!(list.get(&mut Reader::new(&four)), Ok(()));
        assert_eq!(list, [[7; 32]; 4]);
    }

    #[test]
    fn list_read_into_a_list_keeps_its_memory() {
        let (long, short) = (bytes(vec![1u32, 2, 3, 4]), bytes(vec![9u32]));
        let mut list: Vec<u32> = decode(&long).expect("whole");
        let (at, room) = (list.as_ptr(), list.capacity());
        for payload in [&short, &long, &short] {
            list.get(&mut Reader::new(payload)).expect("whole");
            assert_eq!((list.as_ptr(), list.capacity()), (at, room));
        }
        assert_eq!(list, [9]);
    }
}
