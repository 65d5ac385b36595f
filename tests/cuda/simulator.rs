//! The simulated device, spoken to without a driver: memory, copies and launches of single kernels.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[path = "../common/cuda_library.rs"]
pub(crate) mod library;
use library::{Library, with_line};

/// Schedules that a result must not depend on: in order, and three random ones.
const SEEDS: [u64; 4] = [0, 1, 2, 0x1c705];

type Alloc = unsafe extern "C" fn(u64, u32) -> u64;
type Free = unsafe extern "C" fn(u64) -> c_int;
type Write = unsafe extern "C" fn(u64, *const u8, u64) -> c_int;
type Read = unsafe extern "C" fn(u64, *mut u8, u64, *mut u64) -> c_int;
type Arguments = unsafe extern "C" fn(*const c_char, *mut u32, *mut *const u32) -> c_int;
type Kernel = unsafe extern "C" fn(u32) -> *const c_char;
type Launch = unsafe extern "C" fn(*const c_char, *const u32, *mut *const c_void, u64, *mut c_char, u64) -> c_int;

/// The functions of simulator.cpp.
struct Functions {
    alloc: Alloc,
    free: Free,
    write: Write,
    read: Read,
    arguments: Arguments,
    kernel: Kernel,
    launch: Launch,
}

/// Elements of device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    address: u64,
    bytes: usize,
}

/// Memory that stays when the device is given back to others; do not drop it while a device is held.
pub(crate) struct Owned(pub(crate) Memory);

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(mut device) = device() {
            device.memory.push(self.0.address);
        }
    }
}

impl Memory {
    /// From byte `offset` on.
    pub(crate) fn from(self, offset: usize) -> Self {
        assert!(offset < self.bytes, "inside");
        Self { address: self.address + offset as u64, bytes: self.bytes - offset }
    }

    /// The first `bytes` bytes.
    pub(crate) fn first(self, bytes: usize) -> Self {
        assert!(bytes <= self.bytes, "inside");
        Self { bytes, ..self }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Memory(Memory),
    /// A null pointer.
    Null,
    U32(u32),
    U64(u64),
    F32(f32),
}

impl From<Memory> for Arg {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<u64> for Arg {
    fn from(value: u64) -> Self {
        Self::U64(value)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

/// Arguments, converted.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { &[$($crate::simulator::Arg::from($arg)),*] };
}
pub(crate) use args;

/// The device of one test; its memory is given back with it.
pub(crate) struct Device {
    functions: MutexGuard<'static, Functions>,
    memory: Vec<u64>,
    seed: u64,
}

/// The device; none, and a line that says so, where there is no C++ compiler.
pub(crate) fn device() -> Option<Device> {
    static LIBRARY: OnceLock<Option<Mutex<Functions>>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| Library::open().map(|library| Mutex::new(functions(&library))));
    let Some(library) = library else {
        println!("skipped: CUDA kernels in the simulator: no C++ compiler (c++)");
        return None;
    };
    let functions = library.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Device { functions, memory: Vec::new(), seed: 0 })
}

impl Device {
    /// Memory with these elements.
    pub(crate) fn upload<T: bytemuck::Pod>(&mut self, values: &[T]) -> Memory {
        let memory = self.room::<T>(values.len());
        self.write(memory, values);
        memory
    }

    /// Elements to the front of memory.
    pub(crate) fn write<T: bytemuck::Pod>(&mut self, memory: Memory, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        // SAFETY: the pointer and the length are those of a slice.
        let failed = unsafe { (self.functions.write)(memory.address, bytes.as_ptr(), bytes.len() as u64) };
        assert_eq!(failed, 0, "the allocation takes its elements");
    }

    /// Keeps memory for longer than the device is held.
    pub(crate) fn keep(&mut self, memory: Memory) -> Owned {
        self.memory.retain(|&address| address != memory.address);
        Owned(memory)
    }

    /// Memory for `len` elements that nobody has written.
    pub(crate) fn room<T>(&mut self, len: usize) -> Memory {
        let bytes = len * size_of::<T>();
        // SAFETY: any size is allowed.
        let address = unsafe { (self.functions.alloc)(bytes as u64, size_of::<T>() as u32) };
        assert_ne!(address, 0, "{bytes} bytes of device memory");
        self.memory.push(address);
        Memory { address, bytes }
    }

    /// All elements, each of which somebody must have written.
    pub(crate) fn read<T: bytemuck::Pod>(&self, memory: Memory) -> Vec<T> {
        let (values, unwritten) = self.read_some(memory);
        assert_eq!(unwritten, values.len(), "every element is written");
        values
    }

    /// All elements, and the number of the first one that nobody wrote.
    pub(crate) fn read_some<T: bytemuck::Pod>(&self, memory: Memory) -> (Vec<T>, usize) {
        let mut values = vec![T::zeroed(); memory.bytes / size_of::<T>()];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let mut unwritten = 0;
        // SAFETY: the pointer and the length are those of a slice; `unwritten` is a variable.
        let failed =
            unsafe { (self.functions.read)(memory.address, bytes.as_mut_ptr(), bytes.len() as u64, &mut unwritten) };
        assert_eq!(failed, 0, "the allocation is there");
        (values, unwritten as usize)
    }

    /// Runs a kernel that must not fail.
    pub(crate) fn launch(&mut self, kernel: &str, grid: [usize; 3], arguments: &[Arg]) {
        if let Err(error) = self.try_launch(kernel, grid, arguments) {
            panic!("{error} (seed {})", self.seed);
        }
    }

    /// Runs a kernel, or says what it did wrong.
    pub(crate) fn try_launch(&mut self, kernel: &str, grid: [usize; 3], arguments: &[Arg]) -> Result<(), String> {
        let name = CString::new(kernel).expect("no NUL");
        self.check_sizes(&name, arguments);
        let values: Vec<[u8; 8]> = arguments.iter().map(|argument| argument.bytes()).collect();
        let mut pointers: Vec<*const c_void> = values.iter().map(|value| value.as_ptr().cast()).collect();
        let grid = grid.map(|size| u32::try_from(size).expect("a grid"));
        let mut error = [0_u8; 1024];
        // SAFETY: the kernel has these arguments with these sizes; the error's place is as long as it says.
        let failed = unsafe {
            (self.functions.launch)(
                name.as_ptr(),
                grid.as_ptr(),
                pointers.as_mut_ptr(),
                self.seed,
                error.as_mut_ptr().cast(),
                error.len() as u64,
            )
        };
        if failed == 0 {
            return Ok(());
        }
        let error = CStr::from_bytes_until_nul(&error).expect("the text ends").to_string_lossy();
        Err(with_line(&error))
    }

    /// Number and sizes of the arguments: a driver would not look.
    fn check_sizes(&self, name: &CStr, arguments: &[Arg]) {
        let (mut threads, mut sizes) = (0, std::ptr::null());
        // SAFETY: the name ends with NUL, and the others are variables.
        let count = unsafe { (self.functions.arguments)(name.as_ptr(), &mut threads, &mut sizes) };
        assert!(count >= 0, "there is no kernel {name:?}");
        assert_eq!(count as usize, arguments.len(), "number of arguments of {name:?}");
        // SAFETY: a kernel's table has one size per argument, and lives as long as the library.
        let sizes = unsafe { std::slice::from_raw_parts(sizes, count as usize) };
        for (i, (argument, &size)) in arguments.iter().zip(sizes).enumerate() {
            assert_eq!(argument.size(), size, "size of argument {i} of {name:?}");
        }
    }

    /// The names of all kernels.
    pub(crate) fn kernels(&self) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            // SAFETY: any number is allowed.
            let name = unsafe { (self.functions.kernel)(names.len() as u32) };
            if name.is_null() {
                return names;
            }
            // SAFETY: a name is a string literal of the library.
            let name = unsafe { CStr::from_ptr(name) };
            names.push(name.to_string_lossy().into_owned());
        }
    }

    /// What `run` answers, which must be the same bits in every schedule.
    pub(crate) fn in_every_schedule<T: PartialEq + std::fmt::Debug>(&mut self, run: impl Fn(&mut Self) -> T) -> T {
        let mut answers = SEEDS.map(|seed| {
            self.seed = seed;
            Some(run(self))
        });
        self.seed = 0;
        let first = answers[0].take().expect("an answer");
        for (answer, seed) in answers.iter().flatten().zip(&SEEDS[1..]) {
            assert_eq!(*answer, first, "schedule {seed} gives other bits than the one in order");
        }
        first
    }

    /// The order of blocks and threads: 0 is ascending, others are random.
    pub(crate) fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for &address in &self.memory {
            // SAFETY: it came from the allocator and was not freed.
            unsafe { (self.functions.free)(address) };
        }
    }
}

impl Arg {
    fn size(&self) -> u32 {
        match self {
            Self::U32(_) | Self::F32(_) => 4,
            Self::Memory(_) | Self::Null | Self::U64(_) => 8,
        }
    }

    fn bytes(&self) -> [u8; 8] {
        match *self {
            Self::Memory(memory) => memory.address,
            Self::Null => 0,
            Self::U64(value) => value,
            Self::U32(value) => value.into(),
            Self::F32(value) => value.to_bits().into(),
        }
        .to_le_bytes()
    }
}

fn functions(library: &Library) -> Functions {
    /// The function of this name and type.
    macro_rules! function {
        ($name:literal, $type:ty) => {
            // SAFETY: simulator.cpp declares it with these types.
            unsafe { std::mem::transmute::<*mut c_void, $type>(library.symbol($name)) }
        };
    }
    Functions {
        alloc: function!(c"sim_alloc", Alloc),
        free: function!(c"sim_free", Free),
        write: function!(c"sim_write", Write),
        read: function!(c"sim_read", Read),
        arguments: function!(c"sim_arguments", Arguments),
        kernel: function!(c"sim_kernel", Kernel),
        launch: function!(c"sim_launch", Launch),
    }
}
