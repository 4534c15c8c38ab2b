"""Find the layers of a model.

Each parameter belongs to a layer with curvature, or is an entry of its own without curvature; explain() prints why.
"""
from torch import nn

from . import _abi, _attention, _convolutions
from ._core import make_error
from ._layers import Embedding, Entry, Layer, Norm, TransposedLinear, module_settings, norm_class_of


def _layer_problem(name, module, parent, linear, all_kinds, attention):
    """Return '' for a supported layer, None for a module of another kind, else the reason why a layer is
    unsupported."""
    if linear is not None and linear(module):
        return ""
    if TransposedLinear.applies_to(module):
        if "forward" in module.__dict__:
            return "Conv1D has a custom forward: its computation is not known"
        return "" if module._parameters.get("weight") is not None else "its weight is computed (weight_norm, a parametrization)"
    if isinstance(module, nn.SyncBatchNorm):
        return "SyncBatchNorm takes its mean over all ranks, which hooks cannot observe"
    kind, plain = type(module), norm_class_of(module)
    if plain is not None and module.weight is None and module.bias is None:
        return None
    if plain is None:
        plain = next((p for p in (nn.Linear, nn.Conv1d, nn.Conv2d) if isinstance(module, p)), None)
    if plain is None and all_kinds:
        plain = _convolutions.find_class(module)
        if plain in (nn.ConvTranspose1d, nn.ConvTranspose2d) and module.groups > 1:
            return f"{plain.__name__} with groups is not supported"
    if plain is None and isinstance(module, nn.Embedding):
        plain = nn.Embedding
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq divides its gradient by the counts of its tokens"
        if module.sparse:
            return "its gradient is sparse (sparse=True)"
    if plain is None:
        return None
    if isinstance(parent, nn.MultiheadAttention) and not (attention and _attention.is_observable(parent)):
        return "MultiheadAttention does not call it, so hooks cannot observe it"
    if "forward" in module.__dict__ or kind.forward is not plain.forward or (hasattr(plain, "_conv_forward") and
                                             kind._conv_forward is not plain._conv_forward):
        return f"{kind.__name__} has a custom forward: its computation is not known"
    if module.weight is not None and module._parameters.get("weight") is None:
        return "its weight is computed (weight_norm, spectral_norm, a parametrization)"
    return ""


def plan_entries(model, exclusion_reason=None, linear=None, embeddings="", all_kinds=False, attention=False):
    """Return the entries of a model in the order of its modules.  exclusion_reason(name, module) returns '', or the reason why
    the module gets no curvature.  linear(module) returns True if the module computes x W' + b.  embeddings: '', or the
    reason why embeddings get no curvature.  all_kinds, attention: Conv3d and transposed convolutions, or MultiheadAttention, get
    curvature; in published programs they do not."""
    modules = list(model.named_modules())
    parents = {id(child): module for _, module in modules for child in module.children()}
    users = {}  # id of a parameter -> [(module, full name)] of the modules that use it
    for name, module in modules:
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                users.setdefault(id(parameter), []).append((module, f"{name}.{attribute}" if name else attribute))
    entries, layers, taken, chosen = [], {}, set(), set()  # chosen: parameters that no layer uses by choice
    for name, module in modules:
        parent, is_attention = parents.get(id(module)), isinstance(module, nn.MultiheadAttention)
        if is_attention and attention:
            problem = _attention.find_problem(module, users)
        else:
            problem = _layer_problem(name, module, parent, linear, all_kinds, attention)
        is_possible = problem == ""
        if problem == "" and isinstance(module, nn.Embedding):
            problem = embeddings
        if problem == "" and exclusion_reason is not None:
            problem = exclusion_reason(name, module)
        is_choice = is_possible and problem != ""
        if is_attention and problem == "":
            added = _attention.make_layers(name, module, users)
            entries += added
            taken.update(id(p) for layer in added for p in layer.parameters())
        elif problem == "":
            problem = _add_layer(name or "root", module, parent, users, layers, entries, taken)
        if is_attention:
            problem = problem or "MultiheadAttention uses it without a layer"
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            if not is_choice:
                chosen.discard(id(parameter))
            if id(parameter) in taken:
                continue
            taken.add(id(parameter))
            full = users[id(parameter)][0][1]
            others = users[id(parameter)][1:]
            if problem == "":
                reason = f"{'' if parameter.requires_grad else 'frozen; '}its layer has curvature without it"
            else:
                tied = _describe_tie(module, *others[0]) if others and (is_choice or not problem) else ""
                reason = "; ".join(filter(None, (problem, tied))) or f"a parameter of {type(module).__name__}"
            entry = Entry(full, reason)
            entry.is_tied = bool(others) and parameter is not getattr(module, "bias", None)
            if is_choice:
                chosen.add(id(parameter))
            entry.places.append((_abi.NG_WEIGHT, module, attribute, full))
            entries.append(entry)
    for entry in entries:
        entry.frozen = isinstance(entry, Layer) and not any(p.requires_grad for p in entry.parameters())
        entry.is_excluded_by_choice = chosen.issuperset(map(id, entry.parameters()))
    return entries


def _kind_of_layer(module, parent):
    """Return the class of the layer of a module with a weight."""
    if isinstance(parent, nn.MultiheadAttention):
        return _attention.OutputProjection
    return TransposedLinear if TransposedLinear.applies_to(module) else _convolutions.KINDS.get(_convolutions.find_class(module), Layer)


def _describe_tie(module, other, full):
    """Return the reason why a module whose parameter is also `full`, of the module `other`, has no curvature."""
    differs = "" if isinstance(other, type(module)) else f" of a {type(other).__name__}, whose factors differ"
    return f"tied to '{full}'{differs}"


def _shares_only_weight(module, parent, users):
    """Return True if layers with the same settings, linear or convolutions, share the weight of this module but have biases
    of their own."""
    if isinstance(module, nn.Embedding) or norm_class_of(module) is not None or isinstance(parent, nn.MultiheadAttention):
        return False
    mine, others = module._parameters, [other for other, _ in users[id(module.weight)]]
    return (any(other._parameters.get("bias") is not mine.get("bias") for other in others)
            and all(other._parameters.get("weight") is module.weight and module_settings(other) == module_settings(module)
                    for other in others))


def _add_layer(name, module, parent, users, layers, entries, taken):
    """Add the module to `layers`, or to the layer with which it shares parameters.  Return '', or the
    reason why the module cannot be added."""
    weight, bias = module.weight, getattr(module, "bias", None)
    weight_only = _shares_only_weight(module, parent, users)  # the biases become entries of their own
    key = (id(weight), None if weight_only else id(bias))
    if key in layers:
        other = layers[key]
        if module_settings(module) != module_settings(other.modules[0]):
            raise make_error(_abi.NG_ERR_ABSENT, f"'{name}' and '{other.name}' share their weight with "
                             "different settings: not supported")
        other.modules.append(module)
        return ""
    for parameter in () if weight_only else (weight, bias):
        for other, full in users[id(parameter)] if parameter is not None else ():
            same = isinstance(other, type(module)) and (id(other._parameters.get("weight")),
                                                        id(other._parameters.get("bias"))) == key
            if not same or id(parameter) in taken:
                return _describe_tie(module, other, full)
    wants = [p is not None and p.requires_grad for p in (weight, bias)]
    if norm_class_of(module) is not None:
        has = wants if any(wants) else [p is not None for p in (weight, bias)]
        layer = Norm(name, module, *has)
    elif isinstance(module, nn.Embedding):
        has, layer = (True, False), Embedding(name, module)
    else:
        if wants == [False, True] and not weight_only:
            return "its weight is frozen, its bias is not"
        kind = _kind_of_layer(module, parent)
        has = [True, bias is not None and wants[0] == wants[1] and kind.covers_bias and not weight_only]
        layer = kind(name, module, has[1])  # without a bias: the bias becomes an entry of its own
    for which, attribute, mine in ((_abi.NG_WEIGHT, "weight", has[0]), (_abi.NG_BIAS, "bias", has[1])):
        if mine:
            parameter = module._parameters[attribute]
            full = next(full for other, full in users[id(parameter)] if other is module)
            layer.places.append((which, module, attribute, full))
            taken.add(id(parameter))
    layers[key] = layer
    entries.append(layer)
    return ""
