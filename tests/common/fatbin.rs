//! Fatbins as nvcc lays them out, as far as the simulated driver looks into them: declarations of kernels, and no code.

/// A kernel: its name, the bytes of its parameters, the threads of a block.
pub(crate) type Kernel = (String, Vec<u32>, u32);

/// The kernels that a PTX text declares, a parameter a line.
pub(crate) fn kernels_of(ptx: &str) -> Vec<Kernel> {
    let kernel = |rest: &str| {
        let (name, rest) = rest.split_once('(').expect("a list of parameters");
        let (list, rest) = rest.split_once(')').expect("its end");
        let bits = |line: &str| line.trim().strip_prefix(".param .")?.split_once(' ')?.0[1..].parse::<u32>().ok();
        let threads = rest.trim_start().strip_prefix(".maxntid ").and_then(|rest| rest.split_once(','));
        let threads = threads.expect("threads of a block").0.parse().expect("a number");
        (name.to_owned(), list.lines().filter_map(bits).map(|bits| bits / 8).collect(), threads)
    };
    ptx.split(".visible .entry ").skip(1).map(kernel).collect()
}

/// A fatbin with code for these architectures.
pub(crate) fn fatbin(architectures: &[u32], kernels: &[Kernel]) -> Vec<u8> {
    let code = elf(kernels);
    let entry = |architecture: u32| {
        let mut entry = Vec::new();
        entry.extend([2_u16, 0x101].map(u16::to_le_bytes).concat());
        entry.extend(64_u32.to_le_bytes());
        entry.extend((code.len() as u64).to_le_bytes());
        entry.resize(28, 0);
        entry.extend(architecture.to_le_bytes());
        entry.resize(40, 0);
        entry.extend(0x11_u64.to_le_bytes());
        entry.resize(64, 0);
        [entry, code.clone()].concat()
    };
    let body: Vec<u8> = architectures.iter().flat_map(|&architecture| entry(architecture)).collect();
    let mut fatbin = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0];
    fatbin.extend((body.len() as u64).to_le_bytes());
    [fatbin, body].concat()
}

/// An ELF with a section of names and one for each kernel.
fn elf(kernels: &[Kernel]) -> Vec<u8> {
    let (mut bytes, mut names, mut table) = (vec![0; 64], vec![0], vec![0; 64]);
    let mut section = |bytes: &Vec<u8>, name: &str, body: usize| {
        let mut header = vec![0; 64];
        header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
        header[24..32].copy_from_slice(&((bytes.len() - body) as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(body as u64).to_le_bytes());
        table.extend(header);
        names.extend(name.bytes().chain([0]));
        names.clone()
    };
    for (name, sizes, threads) in kernels {
        let mut info = Vec::new();
        let mut at = 0;
        for (position, &size) in sizes.iter().enumerate() {
            at = u32::next_multiple_of(at, size);
            info.extend([4, 0x17, 12, 0]);
            info.extend([0, position as u32 | at << 16, size << 18 | 0x1F000].map(u32::to_le_bytes).concat());
            at += size;
        }
        info.extend([4, 0x05, 12, 0]);
        info.extend([*threads, 1, 1].map(u32::to_le_bytes).concat());
        bytes.extend(&info);
        section(&bytes, &format!(".nv.info.{name}"), info.len());
    }
    let all_names = section(&bytes, ".shstrtab", 0);
    let count = kernels.len() + 2;
    let names_header = table.len() - 64;
    table[names_header + 24..][..8].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    table[names_header + 32..][..8].copy_from_slice(&(all_names.len() as u64).to_le_bytes());
    bytes.extend(&all_names);
    let start = bytes.len() as u64;
    bytes.extend(&table);
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[40..48].copy_from_slice(&start.to_le_bytes());
    for (at, value) in [(58, 64), (60, count as u16), (62, count as u16 - 1)] {
        bytes[at..at + 2].copy_from_slice(&u16::to_le_bytes(value));
    }
    bytes
}
