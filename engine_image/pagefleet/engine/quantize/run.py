"""`pagefleet quantize`: from a model to a checkpoint of rounded weights, one decoder layer after another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from pagefleet.engine.errors import StartupError
from pagefleet.engine.gguf_conversion import convert
from pagefleet.engine.layers.int4 import PER_WORD
from pagefleet.engine.layers.int4_rounding import GROUPS
from pagefleet.engine.layers.quantized import QuantizedWeight, quantize_rows
from pagefleet.engine.machine import usable_cores
from pagefleet.engine.model_source import ModelSource, resolve_model
from pagefleet.engine.models.registry import NATIVE_MODELS, architecture_of
from pagefleet.engine.quantize.awq import smooth
from pagefleet.engine.quantize.calibration import read_windows
from pagefleet.engine.quantize.decoder_layers import LayerRunner, layers_of
from pagefleet.engine.quantize.formats import FORMATS_OF, quantization_config, tensors_of
from pagefleet.engine.quantize.gptq import round_with_moments
from pagefleet.engine.quantize.moments import InputMoments, collect_moments
from pagefleet.engine.quantize.output import new_folder, write_checkpoint
from pagefleet.engine.quantize.rounded import RoundedLinear, round_to_nearest
from pagefleet.engine.transformers_setup import prepare_transformers
from pagefleet.engine.weights import first_line, load_config, load_gguf_model

METHODS = tuple(FORMATS_OF)

CALIBRATED = ("gptq", "awq")

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """Say what to quantize, how, and where to."""

    model: str
    method: str
    output: Path
    form: str | None = None
    """What the checkpoint is written as; None is the method's own format."""
    calibration: Path | None = None
    revision: str | None = None
    group_size: int | None = None
    """Inputs with one scale; None is the largest of 128, 64 and 32 that divides the inputs of all layers."""
    samples: int = 64
    window_tokens: int = 512
    damping: float = 0.01
    """Share of the mean second moment that GPTQ adds to all."""
    threads: int | None = None
    """None is one for each core."""


@torch.inference_mode()
def run_quantize(options: QuantizeOptions, say: Say) -> None:
    """Write the checkpoint; raises StartupError with the sentence for the user."""
    _check(options)
    torch.set_num_threads(options.threads or usable_cores())
    prepare_transformers()
    with new_folder(options.output) as folder:
        source = convert(resolve_model(options.model, lambda _: None, revision=options.revision))
        model = _load(source)
        group = None if options.method == "int8" else _group_size(model, options.group_size)
        tokenizer = _tokenizer(source)
        runner = _runner(options, model, tokenizer) if options.method in CALIBRATED else None
        form = options.form or FORMATS_OF[options.method][0]
        packed: dict[str, dict[str, torch.Tensor]] = {}
        names = {module: name for name, module in model.named_modules()}
        for index, layer in enumerate(tqdm(layers_of(model), unit="layer", disable=None)):
            rounded = round_layer(layer, index, runner, options, group)
            packed |= {f"{names[layer]}.{name}": tensors_of(each, form) for name, each in rounded.items()}
        write_checkpoint(folder, model, packed, quantization_config(form, group, options.damping))
        tokenizer.save_pretrained(folder)
    stored = sum(tensor.nbytes for tensors in packed.values() for tensor in tensors.values())
    rounding = "8 bits, a scale for each output" if group is None else f"4 bits, groups of {group}"
    say(
        f"{options.output}: {len(packed)} linears in {rounding}, {stored / 2**20:.1f} MiB; "
        f"pagefleet engine serve {options.output}"
    )


def round_layer(
    layer: nn.Module, index: int, runner: LayerRunner | None, options: QuantizeOptions, group: int | None
) -> Mapping[str, RoundedLinear | QuantizedWeight]:
    """Return a layer's linears, rounded by name; their floats in the layer become what those stand for."""
    linears = _linears(layer)
    if group is None:
        return {name: quantize_rows(linear.weight) for name, linear in linears.items()}
    moments: dict[str, InputMoments] = {}
    if runner is not None:
        with collect_moments(linears) as moments:
            runner.run(index)
    if options.method == "awq":
        smooth(dict(layer.named_modules()), moments, group)
    if options.method == "gptq":
        rounded = _round_by_moments(linears, moments, group, options.damping)
    else:
        rounded = {name: round_to_nearest(linear.weight, group) for name, linear in linears.items()}
    for name, each in rounded.items():
        linears[name].weight.copy_(each.values())
    if runner is not None:
        runner.advance(index)
    return rounded


def _round_by_moments(
    linears: dict[str, nn.Linear], moments: dict[str, InputMoments], group: int, damping: float
) -> dict[str, RoundedLinear]:
    """Round linears, those with one input together: the work grows with inputs, hardly with outputs."""
    together: dict[int, list[str]] = {}
    for name in linears:
        together.setdefault(id(moments[name]), []).append(name)
    rounded: dict[str, RoundedLinear] = {}
    for group_names in together.values():
        weights = [linears[name].weight for name in group_names]
        whole = round_with_moments(torch.cat(weights), moments[group_names[0]].products, group, damping=damping)
        rounded |= dict(zip(group_names, whole.rows([len(weight) for weight in weights]), strict=True))
    return rounded


def _check(options: QuantizeOptions) -> None:
    if options.method not in METHODS:
        raise StartupError(f"--method {options.method} is unknown; use {', '.join(METHODS)}")
    if options.form not in (None, *FORMATS_OF[options.method]):
        raise StartupError(
            f"--format {options.form} does not hold what --method {options.method} makes; use "
            f"{' or '.join(FORMATS_OF[options.method])}"
        )
    if options.method in CALIBRATED and options.calibration is None:
        raise StartupError(
            f"--method {options.method} needs --calibration FILE, a text like those that the model will read; "
            "or use --method int4 or int8, which need none"
        )
    if options.method not in CALIBRATED and options.calibration is not None:
        raise StartupError(f"--calibration is read by {' and '.join(CALIBRATED)} alone; leave it out")
    if options.method == "int8" and options.group_size is not None:
        raise StartupError(f"--group-size {options.group_size} is for 4 bits: int8 has a scale for each output")
    if options.group_size not in (None, *GROUPS):
        raise StartupError(f"--group-size {options.group_size} is not {', '.join(map(str, GROUPS))}; use 128")
    if not 0 < options.damping <= 1:
        raise StartupError(f"--damping {options.damping:g} is no share above 0; use 0.01")


def _load(source: ModelSource) -> Any:
    """Return transformers' model in float32; raises StartupError."""
    from transformers import AutoModelForCausalLM

    config = load_config(source)
    architecture = architecture_of(config)
    if architecture not in NATIVE_MODELS:
        raise StartupError(f"{architecture} cannot be quantized here; use one of {', '.join(NATIVE_MODELS)}")
    if source.gguf_file is None and getattr(config, "quantization_config", None) is not None:
        raise StartupError(f"model {source.path} is quantized already; give the plain one")
    dtype = config.dtype
    try:
        model: Any = (
            load_gguf_model(source)
            if source.gguf_file is not None
            else AutoModelForCausalLM.from_pretrained(source.folder, config=config, dtype=torch.float32)
        )
    except StartupError:
        raise
    except Exception as error:  # transformers raises whatever its loaders do
        raise StartupError(f"the weights of {source.path} cannot be loaded: {first_line(error)}") from error
    model.config.dtype = dtype or torch.float32  # what is not packed is stored as it was
    return model.eval()


def _tokenizer(source: ModelSource) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.folder, gguf_file=source.gguf_file)
    except Exception as error:  # transformers raises whatever its readers do
        raise StartupError(f"no tokenizer could be loaded from {source.path}: {first_line(error)}") from error


def _linears(layer: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in layer.named_modules() if isinstance(module, nn.Linear)}


def _group_size(model: Any, asked: int | None) -> int:
    """Return a group size that suits all linears, as a checkpoint has one; raises StartupError."""
    linears = [linear for layer in layers_of(model) for linear in _linears(layer).values()]
    fitting = [size for size in GROUPS if all(linear.in_features % size == 0 for linear in linears)]
    sizes = ", ".join(map(str, sorted({linear.in_features for linear in linears})))
    if not fitting or any(linear.out_features % PER_WORD for linear in linears):
        raise StartupError(
            f"this model's linears, of {sizes} inputs, cannot be packed: inputs must be multiples of {GROUPS[-1]} and "
            f"outputs of {PER_WORD}; use pagefleet engine serve --quantization int8"
        )
    if asked is not None and asked not in fitting:
        raise StartupError(f"--group-size {asked} does not divide the {sizes} inputs of all linears; use {fitting[0]}")
    return asked or fitting[0]


def _runner(options: QuantizeOptions, model: Any, tokenizer: Any) -> LayerRunner:
    longest = int(model.config.max_position_embeddings)
    if options.window_tokens > longest:
        raise StartupError(f"--window {options.window_tokens} does not fit this model's context; use {longest} or less")
    if options.calibration is None:
        raise ValueError("checked before")
    windows = read_windows(
        options.calibration,
        tokenizer,
        samples=options.samples,
        window_tokens=options.window_tokens,
        vocabulary_size=int(model.config.vocab_size),
    )
    return LayerRunner(model, windows)
