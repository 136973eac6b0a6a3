"""torchvision's transforms as options of the pipeline, known by class name: torchvision itself need not be installed."""

from typing import Any, Dict, List


def _pair(size: Any) -> List[int]:
    if isinstance(size, int):
        return [size, size]
    size = list(size)
    return size * 2 if len(size) == 1 else size


def _filter_of_resize(transform: Any, name: str) -> str:
    mode = getattr(transform, "interpolation", "bilinear")
    filters = {"bilinear": "bilinear", "2": "bilinear", "bicubic": "bicubic", "3": "bicubic"}
    found = filters.get(str(getattr(mode, "value", mode)).lower())
    if found is None:
        raise ValueError(f"{name} with interpolation {mode}: only bilinear and bicubic are known")
    if getattr(transform, "antialias", True) is False:
        raise ValueError(f"{name} with antialias=False: resizing is always antialiased here")
    if getattr(transform, "max_size", None) is not None:
        raise ValueError(f"{name} with max_size is not known")
    return found


def _channels(values: Any) -> List[float]:
    """One number, or a sequence of one or three."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return [float(v) for v in (values if isinstance(values, (list, tuple)) else [values])]


def _colours(jitter: Any) -> Dict[str, List[float]]:
    ranges = {name: getattr(jitter, name, None) for name in ("brightness", "contrast", "saturation", "hue")}
    return {name: [float(v) for v in value] for name, value in ranges.items() if value is not None}


def _rand_augment(step: Any, has_size: bool, dtype: str) -> List[int]:
    if not has_size:
        raise ValueError("RandAugment before the pictures have their size is not known")
    if dtype != "u8":
        raise ValueError("RandAugment behind ToTensor is not known: it changes 8 bits here")
    if step.num_magnitude_bins != 31:
        raise ValueError(f"RandAugment with {step.num_magnitude_bins} magnitudes is not known: there are 31 here")
    mode = getattr(step.interpolation, "value", step.interpolation)
    if str(mode).lower() not in ("nearest", "0"):
        raise ValueError(f"RandAugment with interpolation {mode}: only nearest is known")
    fill = step.fill
    if fill is not None and any(value != 0 for value in (fill.values() if isinstance(fill, dict) else fill if isinstance(fill, (list, tuple)) else [fill]) if value is not None):
        raise ValueError("RandAugment with a fill is not known: what lies outside is black here")
    return [step.num_ops, step.magnitude]


def _flatten(transform: Any) -> List[Any]:
    if isinstance(transform, (list, tuple)):
        return [inner for outer in transform for inner in _flatten(outer)]
    if type(transform).__name__ == "Compose":
        return _flatten(transform.transforms)
    return [transform]


def options_from_transforms(transform: Any) -> Dict[str, Any]:
    """Loader options that do what a torchvision transform, or a list of them, does (v1 and v2).

    Known are Compose, RandomResizedCrop, Resize, CenterCrop, RandomHorizontalFlip, ColorJitter, RandAugment, ToTensor, PILToTensor, ToImage, ToPureTensor, ConvertImageDtype,
    ToDtype and Normalize. ValueError names the first that is not known, or that would give another result here.
    """
    options: Dict[str, Any] = {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0], "flip": 0.0, "dtype": "u8"}
    resize = None
    seen = set()
    for step in _flatten(transform):
        name = type(step).__name__
        if name in seen and name in ("RandomResizedCrop", "Resize", "CenterCrop", "RandomHorizontalFlip", "ColorJitter", "RandAugment", "Normalize"):
            raise ValueError(f"{name} twice is not known")
        seen.add(name)
        if name == "RandomResizedCrop":
            options.update(augment="random_crop", size=_pair(step.size), scale=list(step.scale), ratio=list(step.ratio),
                           interpolation=_filter_of_resize(step, name))
        elif name == "Resize":
            options["interpolation"] = _filter_of_resize(step, name)
            resize = step.size
        elif name == "CenterCrop":
            for before in ("ColorJitter", "RandAugment"):
                if before in seen:
                    raise ValueError(f"CenterCrop behind {before} is not known: pictures have their size before it here")
            options.update(augment="center_crop", size=_pair(step.size))
        elif name == "RandomHorizontalFlip":
            options["flip"] = float(step.p)
        elif name == "ColorJitter":
            if "randaugment" in options:
                raise ValueError("ColorJitter behind RandAugment is not known: colours change before it here")
            if "augment" not in options and resize is None:
                raise ValueError("ColorJitter before the pictures have their size is not known")
            if options["dtype"] != "u8":
                raise ValueError("ColorJitter behind ToTensor is not known: colours are changed in 8 bits here")
            options.update(_colours(step))
        elif name == "RandAugment":
            options["randaugment"] = _rand_augment(step, "augment" in options or resize is not None, options["dtype"])
        elif name == "ToTensor":
            options["dtype"] = "f32"
        elif name in ("ConvertImageDtype", "ToDtype"):
            wanted = str(step.dtype).rsplit(".", 1)[-1]
            types = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "uint8": "u8"}
            if wanted not in types:
                raise ValueError(f"{name} to {wanted} is not known")
            if name == "ToDtype" and wanted != "uint8" and not getattr(step, "scale", False):
                raise ValueError("ToDtype without scale=True: values are scaled to 0 to 1 here")
            options["dtype"] = types[wanted]
        elif name == "Normalize":
            options.update(mean=_channels(step.mean), std=_channels(step.std))
        elif name not in ("PILToTensor", "ToImage", "ToPILImage", "ToPureTensor", "Identity"):
            raise ValueError(f"the transform {name} is not known; known are RandomResizedCrop, Resize, CenterCrop, RandomHorizontalFlip, "
                             "ColorJitter, RandAugment, ToTensor, ToDtype, Normalize and their like")
    if resize is not None and options.get("augment") == "center_crop":
        if not isinstance(resize, int) and len(list(resize)) > 1:
            raise ValueError("Resize to a height and a width before CenterCrop is not known")
        options["resize"] = _pair(resize)[0]
    elif resize is not None:
        if options.get("augment") == "random_crop":
            raise ValueError("Resize together with RandomResizedCrop is not known")
        if isinstance(resize, int) or len(list(resize)) == 1:
            raise ValueError("Resize to one number gives pictures of different sizes; add CenterCrop, or give height and width")
        options.update(augment="stretch", size=_pair(resize))
    elif options.get("augment") == "center_crop":
        raise ValueError("CenterCrop without Resize before it is not known")
    elif "augment" not in options:
        raise ValueError("nothing gives the pictures one size: RandomResizedCrop, or Resize with CenterCrop")
    return options
