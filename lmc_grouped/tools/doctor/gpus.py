"""The driver and its devices."""

from typing import TYPE_CHECKING

from lmc_grouped.tools.doctor.findings import Finding, fail, note, ok, warn
from lmc_grouped.tools.doctor.questions import Reply, TorchFacts
from lmc_grouped.tools.doctor.software import SM70_PAGE

if TYPE_CHECKING:
    from lmc_grouped.host.devices import Device, Driver


def find_driver() -> "Driver | str":
    """The driver, or why there is none."""
    from lmc_grouped.host import devices

    try:
        return devices.find()
    except devices.DriverError as error:
        return str(error)


def capabilities(driver: "Driver | str") -> dict[int, tuple[int, int]]:
    """Compute capability of each visible device, by index."""
    if isinstance(driver, str):
        return {}
    return {device.index: device.capability for device in driver.devices}


def check_driver(driver: "Driver | str", torch: Reply | None) -> list[Finding]:
    """Whether the driver serves what torch is built for."""
    wanted = torch.cuda if isinstance(torch, TorchFacts) else None
    if isinstance(driver, str):
        if wanted is None:
            return [note("driver", f"{driver}; the engine's cache is in host memory")]
        return [
            fail(
                "driver",
                f"{driver}; torch is built for CUDA {wanted}",
                "install an NVIDIA driver, give the container its devices, or use CPU builds",
            )
        ]
    text = f"CUDA {driver.cuda_version}, {len(driver.devices)} devices"
    if wanted is None:
        return [ok("driver", text)]
    if not driver.devices:
        return [fail("driver", text, "check CUDA_VISIBLE_DEVICES")]
    if driver.version // 1000 < int(wanted.split(".")[0]):
        return [
            fail(
                "driver",
                f"{text}; torch is built for CUDA {wanted}",
                f"update the driver, or install a torch for CUDA {driver.version // 1000}",
            )
        ]
    return [ok("driver", text)]


def check_devices(driver: "Driver | str", torch: Reply | None) -> list[Finding]:
    """Whether torch holds code for each device."""
    if isinstance(driver, str):
        return []
    return [_check_device(device, torch) for device in driver.devices]


def _check_device(device: "Device", torch: Reply | None) -> Finding:
    from lmc_grouped.host.fatbin import Architecture

    major, minor = device.capability
    subject, text = f"device {device.index}", f"{device.name}, compute capability {major}.{minor}"
    if not isinstance(torch, TorchFacts):
        return note(subject, text)
    if torch.cuda is None:
        return warn(
            subject, f"{text}; torch is without CUDA", "install a torch with CUDA to use it"
        )
    held = [Architecture.parse(name) for name in torch.architectures]
    if any(each is not None and each.serves(device.capability) for each in held):
        return ok(subject, text)
    return fail(
        subject,
        f"{text}; torch {torch.version} holds nothing for it",
        f"install a torch with sm_{major}{minor}"
        + (f": {SM70_PAGE}" if device.capability < (7, 5) else ""),
    )
