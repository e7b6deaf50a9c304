//! PNG images of up to 16 colours, as [`crate::Picture`] draws them (PNG specification, W3C 2025):
//! four bits for a pixel, not compressed, which needs nothing beside two checksums.

/// Bytes that begin every PNG image.
const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
/// Most bytes of a block that is stored as it is (RFC 1951).
const STORED_MAX: usize = 0xffff;

/// An image. Pixels are numbers of colours, line by line, all lines of the same length.
pub(crate) fn png(colours: &[[u8; 3]; 16], lines: &[Vec<u8>]) -> Vec<u8> {
    let width = lines.first().map_or(0, Vec::len);
    let mut header = Vec::new();
    header.extend((width as u32).to_be_bytes());
    header.extend((lines.len() as u32).to_be_bytes());
    // Four bits for the number of a colour; the only compression and filter that there are; in
    // order.
    header.extend([4, 3, 0, 0, 0]);
    let mut pixels = Vec::new();
    for line in lines {
        // Not filtered.
        pixels.push(0);
        pixels.extend(line.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0)));
    }
    let mut image = SIGNATURE.to_vec();
    add_chunk(&mut image, b"IHDR", &header);
    add_chunk(&mut image, b"PLTE", &colours.concat());
    add_chunk(&mut image, b"IDAT", &zlib(&pixels));
    add_chunk(&mut image, b"IEND", &[]);
    image
}

fn add_chunk(image: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    image.extend((data.len() as u32).to_be_bytes());
    let start = image.len();
    image.extend(kind);
    image.extend(data);
    let checksum = crc32(&image[start..]);
    image.extend(checksum.to_be_bytes());
}

/// A zlib stream (RFC 1950) of blocks that are stored as they are.
fn zlib(data: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let blocks = data.len().div_ceil(STORED_MAX);
    for (number, block) in data.chunks(STORED_MAX).enumerate() {
        let length = block.len() as u16;
        stream.push(u8::from(number + 1 == blocks));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(block);
    }
    stream.extend(adler32(data).to_be_bytes());
    stream
}

/// CRC-32 of ISO 3309.
fn crc32(data: &[u8]) -> u32 {
    let of_byte = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    };
    !data.iter().fold(!0, of_byte)
}

fn adler32(data: &[u8]) -> u32 {
    let (low, high) = data.iter().fold((1, 0), |(low, high), byte| {
        ((low + u32::from(*byte)) % 65_521, (high + low + u32::from(*byte)) % 65_521)
    });
    high << 16 | low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_specifications() {
        assert_eq!((crc32(b"123456789"), crc32(b"IEND")), (0xcbf4_3926, 0xae42_6082));
        assert_eq!((adler32(b"Wikipedia"), adler32(b"")), (0x11e6_0398, 1));
    }

    #[test]
    fn long_data_are_several_blocks_and_lines_are_whole_bytes() {
        let stream = zlib(&vec![7; STORED_MAX + 2]);
        assert_eq!(stream.len(), 2 + 5 + STORED_MAX + 5 + 2 + 4);
        assert_eq!((stream[2..7].to_vec(), stream[7 + STORED_MAX]), (vec![0, 0xff, 0xff, 0, 0], 1));
        let colours = [[9; 3]; 16];
        let image = png(&colours, &[vec![1, 2, 3], vec![4, 5, 15]]);
        let bytes = |from: &[u8]| image.windows(from.len()).any(|part| part == from);
        assert!(image.starts_with(&SIGNATURE) && bytes(&[0, 0, 0, 3, 0, 0, 0, 2, 4, 3, 0, 0, 0]));
        assert!(bytes(&[1, 6, 0, 0xf9, 0xff, 0, 0x12, 0x30, 0, 0x45, 0xf0]), "{image:x?}");
    }
}
