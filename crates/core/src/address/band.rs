use ipnet::IpNet;

use super::block::Blocks;

/// How many addresses the static band of a range has: those from index 1 on, which KEP-3070
/// (ServiceIPStaticSubrange) leaves for addresses chosen by hand.
///
/// 0 for a range of 16 addresses or fewer; else a sixteenth of them, at least 16 and at most 256.
/// Every address of the range counts, the network address too.
pub fn static_band_len(cidr: IpNet) -> u128 {
    const SMALLEST: u128 = 16;
    const LARGEST: u128 = 256;
    let addresses = Blocks::addresses(cidr).last_index().saturating_add(1);
    if addresses <= SMALLEST { 0 } else { (addresses / 16).clamp(SMALLEST, LARGEST) }
}
