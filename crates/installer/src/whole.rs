//! Whether a file is a whole program: a copy that was interrupted is not.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Whether a file of this size can be executed as far as its headers say: it is a script, or an ELF file that has all the parts
/// that its headers name.
pub(crate) fn is_whole(file: &File, size: u64) -> bool {
    let mut header = [0; 64];
    let Ok(length) = file.read_at(&mut header, 0) else { return false };
    let header = &header[..length];
    header.starts_with(b"#!") || elf_end(file, header).is_some_and(|end| end <= size)
}

/// The places of the fields of an ELF header; see elf(5).
struct Layout {
    is_64: bool,
    is_big_endian: bool,
}

impl Layout {
    fn number(&self, bytes: &[u8], at: usize, length: usize) -> Option<u64> {
        let field = bytes.get(at..at + length)?;
        let mut value = 0;
        for place in 0..length {
            let byte = if self.is_big_endian { field[place] } else { field[length - 1 - place] };
            value = value << 8 | u64::from(byte);
        }
        Some(value)
    }

    /// A field whose place and length depend on the class.
    fn wide(&self, bytes: &[u8], at_64: usize, at_32: usize) -> Option<u64> {
        if self.is_64 { self.number(bytes, at_64, 8) } else { self.number(bytes, at_32, 4) }
    }

    fn short(&self, bytes: &[u8], at_64: usize, at_32: usize) -> Option<u64> {
        self.number(bytes, if self.is_64 { at_64 } else { at_32 }, 2)
    }
}

/// The offset behind the last part that the headers name; `None` if it is not an ELF file or its program headers are missing.
fn elf_end(file: &File, header: &[u8]) -> Option<u64> {
    if !header.starts_with(b"\x7fELF") {
        return None;
    }
    let layout = Layout { is_64: *header.get(4)? == 2, is_big_endian: *header.get(5)? == 2 };
    let program_headers = layout.wide(header, 0x20, 0x1c)?;
    let sections = layout.wide(header, 0x28, 0x20)?;
    let entry = layout.short(header, 0x36, 0x2a)?;
    let count = layout.short(header, 0x38, 0x2c)?;
    let section_entry = layout.short(header, 0x3a, 0x2e)?;
    let section_count = layout.short(header, 0x3c, 0x30)?;
    let mut end = sections.checked_add(section_entry * section_count)?;
    let mut table = vec![0; usize::try_from(entry * count).ok()?];
    file.read_exact_at(&mut table, program_headers).ok()?;
    for one in table.chunks_exact(usize::try_from(entry).ok().filter(|size| *size > 0)?) {
        let offset = layout.wide(one, 0x08, 0x04)?;
        let length = layout.wide(one, 0x20, 0x10)?;
        end = end.max(offset.checked_add(length)?);
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_program_is_whole() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let whole = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            is_whole(&File::open(&path).unwrap(), content.len() as u64)
        };
        assert!(whole(&own) && whole(b"#!/bin/sh\n"));
        for length in [0, 3, 4, 20, 63, 64, 100, own.len() / 2, own.len() - 1] {
            assert!(!whole(&own[..length]), "{length} bytes");
        }
        assert!(!whole(b"half a file"));
        let mut wrong = own.clone();
        wrong[0x20..0x28].fill(0xff);
        assert!(!whole(&wrong));
    }
}
