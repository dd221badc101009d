//! The program's mappings before a sleep and after a wake. The gate is closed meanwhile: the program may unmap, and
//! maps nothing.

use lowtide_device::{Error, Result};

use super::tables::{MappingState, ProgramHandle, Tables, VirtualMemory};
use crate::driver::calls;
use crate::driver::codes::INVALID_VALUE;

impl VirtualMemory {
    /// Takes away the program's mappings of a context's memory, so that the memory can leave the device.
    ///
    /// # Errors
    /// That of the driver. The mappings that are gone by then are for [`VirtualMemory::bring_mappings_back`].
    pub(crate) fn take_mappings_away(&self, context: usize) -> Result<()> {
        let all = self.tables().mappings_of(context, |state| state != MappingState::Away);
        for at in all {
            let mut tables = self.tables();
            // The program may have unmapped it by now.
            let Some(mapping) = tables.mappings.get_mut(&at) else { continue };
            calls::unmap(at, mapping.bytes)?;
            mapping.state = MappingState::Away;
        }
        Ok(())
    }

    /// Makes the program's mappings of a context's memory again. The memory is awake.
    ///
    /// # Errors
    /// That of the driver. The mappings that are missing then are for the next attempt.
    pub(crate) fn bring_mappings_back(&self, context: usize) -> Result<()> {
        let all = self.tables().mappings_of(context, |state| state != MappingState::Whole);
        for at in all {
            self.tables().bring_back(at)?;
        }
        Ok(())
    }
}

impl Tables {
    /// Lists the mappings of a context's memory that are in some state.
    fn mappings_of(&self, context: usize, is_meant: impl Fn(MappingState) -> bool) -> Vec<u64> {
        let is_of = |handle: &u64| self.handles.get(handle).is_some_and(|one| one.is_of(context));
        let own = self.mappings.iter().filter(|(_, mapping)| is_meant(mapping.state));
        own.filter(|(_, mapping)| is_of(&mapping.handle)).map(|(at, _)| *at).collect()
    }

    fn bring_back(&mut self, at: u64) -> Result<()> {
        // The program may have unmapped it by now.
        let Some(mapping) = self.mappings.get_mut(&at) else { return Ok(()) };
        if mapping.state == MappingState::Away {
            let real = self.handles.get(&mapping.handle).and_then(ProgramHandle::real);
            calls::map(at, mapping.bytes, real.ok_or_else(no_memory)?)?;
            mapping.state = MappingState::Closed;
        }
        if !mapping.access.is_empty() {
            calls::set_access(at, mapping.bytes, &mapping.access)?;
        }
        mapping.state = MappingState::Whole;
        Ok(())
    }
}

fn no_memory() -> Error {
    let name = "the memory of a mapping is not there".to_owned();
    Error::Driver { device: None, call: "cuMemMap", code: INVALID_VALUE, name }
}
