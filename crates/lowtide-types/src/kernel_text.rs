//! What the kernel writes about processes, in which names may be any bytes: it cuts the name of a program after 15 of
//! them, also in the middle of a character.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than the kernel writes about a process, but for a very long command line or list of mappings.
const USUAL: usize = 4096;

/// Reads a file of the kernel, with few calls: its size is not known before. Bytes that are no text are replaced.
///
/// # Errors
/// Those of the file system.
pub fn kernel_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(USUAL);
    // Without asking for the size, which is zero.
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        let path = std::env::temp_dir().join(format!("lowtide-kernel-{}", std::process::id()));
        let text = [b"7 (n\xc3) S ".repeat(1000), b"end".to_vec()].concat();
        std::fs::write(&path, &text).unwrap();
        let read = kernel_text(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(read.starts_with("7 (n\u{fffd}) S ") && read.ends_with("end"));
        assert!(kernel_text("/proc/no/such").is_err());
    }
}
