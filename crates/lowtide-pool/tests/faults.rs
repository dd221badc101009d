//! The random player with faults at the driver: whatever fails, the pool stays whole.
#![allow(unsafe_code, reason = "names the double in the environment")]

mod game;

use game::{Game, Ground};
use lowtide_device::{Bytes, Device};
use lowtide_testing::double::Double;

#[test]
fn faults_at_the_driver_leave_the_pool_whole() {
    let path = Double::path();
    for name in ["LOWTIDE_CUDA_LIBRARY", "LOWTIDE_NVML_LIBRARY"] {
        // SAFETY: the only test of this program, before anything else runs.
        unsafe { std::env::set_var(name, &path) };
    }
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let device = Device::cuda(0).unwrap();
    let base = device.usage().unwrap().in_use();
    let mut game = Game::new(&device, 7, true, Ground::Bytes);
    for turn in 0..4_000 {
        if turn % 5 == 0 {
            let calls = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"];
            let code = [2, 999][game.dice.roll(2) as usize];
            double.fail_nth(calls[game.dice.roll(5) as usize], 1 + game.dice.roll(3), code);
        }
        game.step(40, 32 << 20);
        game.check();
        double.clear_faults();
        // Gives back what was refused meanwhile, so that the numbers can be compared.
        drop(device.reserve(Bytes::mib(2)).unwrap());
        game.check_device(base);
    }
    game.finish(base);
}
