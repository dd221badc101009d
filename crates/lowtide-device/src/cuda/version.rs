//! Versions of the CUDA driver API, and the driver releases that brought them.

use std::fmt;

use serde::{Serialize, Serializer};

/// A version of the CUDA driver API, such as 12.8.
///
/// ```
/// use lowtide_device::cuda::CudaVersion;
///
/// let version = CudaVersion::new(12, 8);
/// assert_eq!(version.to_string(), "12.8");
/// assert_eq!(version.driver_release(), 570);
/// assert!(version < CudaVersion::new(13, 0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion(i32);

/// The first driver release for each API version from 12.0 on, newest first.
const RELEASES: [(CudaVersion, u32); 10] = [
    (CudaVersion::new(13, 0), 580),
    (CudaVersion::new(12, 9), 575),
    (CudaVersion::new(12, 8), 570),
    (CudaVersion::new(12, 6), 560),
    (CudaVersion::new(12, 5), 555),
    (CudaVersion::new(12, 4), 550),
    (CudaVersion::new(12, 3), 545),
    (CudaVersion::new(12, 2), 535),
    (CudaVersion::new(12, 1), 530),
    (CudaVersion::new(12, 0), 525),
];

impl CudaVersion {
    /// The oldest version that lowtide works with.
    pub const LEAST: CudaVersion = CudaVersion::new(12, 0);

    /// Creates the version `major.minor`.
    pub const fn new(major: i32, minor: i32) -> CudaVersion {
        CudaVersion(major * 1000 + minor * 10)
    }

    /// Creates a version from the number that `cuDriverGetVersion` returns: 1000 × major + 10 × minor.
    pub const fn from_raw(raw: i32) -> CudaVersion {
        CudaVersion(raw)
    }

    /// Reads `major.minor`, for the list of entry points.
    pub(super) const fn parse(text: &str) -> CudaVersion {
        let text = text.as_bytes();
        let (mut parts, mut part, mut index) = ([0, 0], 0, 0);
        while index < text.len() {
            match text[index] {
                b'.' => part += 1,
                digit => parts[part] = parts[part] * 10 + (digit - b'0') as i32,
            }
            index += 1;
        }
        CudaVersion::new(parts[0], parts[1])
    }

    /// Returns the first release of the NVIDIA driver that has this version and works with lowtide,
    /// such as 570 for 12.8.
    pub fn driver_release(self) -> u32 {
        let known = RELEASES.iter().rev().find(|(version, _)| *version >= self);
        known.map_or(RELEASES[0].1, |(_, release)| *release)
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

impl Serialize for CudaVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_ordered_and_written() {
        assert_eq!(CudaVersion::parse("12.8"), CudaVersion::from_raw(12080));
        assert_eq!(CudaVersion::parse("2.0"), CudaVersion::new(2, 0));
        assert!(CudaVersion::parse("10.2") < CudaVersion::LEAST);
        assert_eq!(CudaVersion::new(11, 4).to_string(), "11.4");
    }

    #[test]
    fn a_version_names_the_release_that_brought_it() {
        let release = |text| CudaVersion::parse(text).driver_release();
        assert_eq!(release("12.1"), 530);
        assert_eq!(release("12.7"), 570, "no release brought 12.7; the next one has it");
        assert_eq!(release("3.2"), 525, "lowtide needs 525 anyway");
        assert_eq!(release("14.0"), 580, "the newest that is known");
    }
}
