"""Programs with other inputs and results than classifiers, for `fusor exec`.
make_torch_export.py exports them."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Language(nn.Module):
    """Predicts the next token. The embedding is also the last layer."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=0)
        self.places = nn.Parameter(torch.randn(1, 6, 8))
        self.norm = nn.RMSNorm(8, eps=1e-5)
        self.qkv = nn.Linear(8, 24)
        self.mix = nn.Linear(8, 16)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, labels):
        present = (ids != 0).long()
        place = (present.cumsum(1) - 1).clamp(min=0)
        x = self.tokens(ids) + torch.gather(
            self.places.expand(ids.shape[0], -1, -1), 1,
            place.unsqueeze(2).expand(-1, -1, 8))
        q, k, v = self.qkv(self.norm(x)).view(-1, 6, 3, 2, 4).permute(
            2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(-1, 6, 8)
        x = x + F.glu(self.mix(x))
        logits = self.head(x)
        return (F.cross_entropy(logits.transpose(1, 2), labels),
                logits.logsumexp(2), ids.neg())


class Segmenter(nn.Module):
    """Goes down and up again, like a U-Net."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, 2, 1, bias=False)
        self.norm = nn.InstanceNorm2d(4, affine=True,
                                      track_running_stats=True)
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1, groups=2)
        self.last = nn.Conv2d(14, 3, 1)

    def forward(self, x):
        y = F.leaky_relu(self.norm(self.down(x)))
        y = torch.cat([
            self.up(y), F.interpolate(y, scale_factor=2.0),
            F.interpolate(y, size=x.shape[2:], mode="bilinear"),
            torch.flip(x, (3,))], 1)
        # The padded row has norm 0.
        return F.normalize(F.pad(self.last(y), (0, 1)), dim=1)


class Functions(nn.Module):
    """Calls functions of mathematics, order and truth."""

    def __init__(self):
        super().__init__()
        self.prelu = nn.PReLU(3)

    def forward(self, x, y):
        inside = 0.9 * torch.tanh(x)
        real = torch.stack([
            torch.asin(inside), torch.acos(inside), torch.atan(4 * x),
            torch.atanh(inside), torch.asinh(3 * x), torch.acosh(2 + x * x),
            torch.sinh(x), torch.cosh(x), torch.tan(inside),
            torch.atan2(x, y), torch.log1p(x * x), torch.expm1(x),
            torch.log1p(1e-3 * inside), torch.expm1(1e-3 * x),
            torch.pow(2.5, x), torch.sign(x) * x, torch.round(3 * x),
            F.softshrink(x, 0.3), self.prelu(x)])
        top, index = torch.topk(x, 2, 1)
        ordered, places = torch.sort(y, 2, descending=True)
        changed = torch.slice_scatter(y, x[:, :1], 1, 1, 2)
        changed = torch.select_scatter(changed, x[:, :, 0], 2, 3)
        flags = torch.stack([torch.any(x > 1, 2), torch.all(x > -2, 2),
                             torch.isnan(x / y * 0).any(2),
                             torch.isinf(x / (y * 0)).all(2)])
        return (real, torch.prod(y, 2), top, index, ordered, places, changed,
                flags.long(), torch.argsort(x, 0), torch.prod(x))


class Places(nn.Module):
    """Reads and writes by index, and calls functions of two operands."""

    def forward(self, x, y):
        torch._check((x == x).all().item())  # numbers only
        rows = torch.tensor([2, 0])
        put = x.clone()
        put[:, rows, 1] = y[:, :2, 0]
        put[x > 1.5] = 0
        added = y.index_add(1, rows, x[:, 1:], alpha=2)
        copied = x.index_copy(2, rows, y[:, :, :2])
        places = torch.tensor([[[0, 3, 1]], [[2, 0, 3]]])
        scattered = torch.scatter(x, 2, places, y[:, :1, :3])
        marked = torch.scatter(y, 2, places, 0.5)
        first, second = torch.meshgrid(x[0, 0], y[0, :, 1], indexing="xy")
        either = torch.where(x > 1, torch.nan, x)
        pairs = torch.stack([
            torch.lerp(x, y, 0.3), torch.lerp(x, y, y), torch.logaddexp(x, y),
            torch.logaddexp2(x, y), torch.fmax(either, y),
            torch.fmin(y, either), torch.nan_to_num(either.detach() / 0, 1, 2, -3) * x,
            torch.square(x), torch.frac(3 * y), torch.flipud(x),
            torch.fliplr(y)])
        filled = x.masked_scatter(y[0] > 0, y.flatten().sin())
        return (put, added, copied, scattered, marked, first * second, pairs,
                filled, torch.outer(x[0, 0], y[0, :, 0]),
                F.cosine_similarity(x, y, dim=2),
                torch.isfinite(either).view_as(x).long(),
                torch.unsafe_chunk(x, 2, 2)[1].ravel().reshape_as(y[:, :, :2]))


class Rearranged(nn.Module):
    """Shuffles, windows, diagonals, stacks and repetitions."""

    def forward(self, x, y):
        image = torch.cat([x, y[:, :1]], 1).unsqueeze(3)  # [2, 4, 4, 1]
        columns = F.unfold(x.unsqueeze(1), (2, 3), padding=1, stride=(1, 2))
        return (F.pixel_shuffle(image, 2), F.channel_shuffle(image, 2),
                F.pixel_unshuffle(x.unsqueeze(1)[:, :, :2], 2), columns,
                F.fold(columns, (3, 4), (2, 3), padding=1, stride=(1, 2)),
                x.unfold(2, 3, 1), torch.diagonal(x, -1, 1, 2),
                torch.diag_embed(y[0], 1), torch.diag(x[0, 0], -1),
                torch.diag(x[0]), torch.trace(y[1]), torch.hstack([x, y]),
                torch.vstack([x[0], y[1]]), torch.dstack([x[0], y[0]]),
                torch.column_stack([x[0, 0], y[0].mT]),
                torch.block_diag(x[0], y[1, :2]), torch.atleast_3d(x[0]),
                *torch.tensor_split(x, 3, 2), *torch.tensor_split(y, (1, 3), 2),
                x.repeat_interleave(2, 1), y.tile(2, 1, 2),
                x.movedim((0, 2), (1, 0)), y.mT,
                x[0][tuple(torch.tril_indices(3, 4))],
                x[0][tuple(torch.triu_indices(3, 4, 1))])


class Vectors(nn.Module):
    """Norms, distances, products and order statistics."""

    def forward(self, x, y):
        norms = [torch.linalg.vector_norm(x, p, 2)
                 for p in (2, 1, 3, 0, float("inf"), -float("inf"))]
        sorted_values = torch.tensor([-1.0, 0.0, 0.5])
        hidden = torch.where(y > 1, torch.nan, y)
        return (*norms, torch.linalg.norm(x), F.pairwise_distance(x, y, 3),
                torch.dist(x, y, 1), torch.cdist(x, y[:, :2]),
                torch.inner(x[0], y[1]), torch.tensordot(x, y, ([2, 1], [2, 1])),
                torch.kron(x[0, :2], y[0]),
                torch.addr(x[0], y[0, :, 0], x[1, 0], beta=0.5, alpha=2),
                torch.linalg.cross(x, y, dim=1), *torch.kthvalue(x, 2, 2),
                *torch.median(y, 2), torch.median(x), *torch.aminmax(y, dim=1),
                torch.count_nonzero(x > 0, 2), torch.nansum(hidden, 1),
                torch.nanmean(hidden, 2), torch.cumprod(x, 1),
                torch.searchsorted(sorted_values, x, right=True),
                torch.bucketize(y, sorted_values),
                torch.take(x, torch.tensor([0, 23, -2])),
                torch.take_along_dim(x, torch.tensor([[[1]], [[2]]]), 1),
                y.index_fill(2, torch.tensor([1, -1]), 2.0),
                torch.erfc(x), torch.logit(torch.sigmoid(x), 1e-3),
                torch.xlogy(x, y * y),
                torch.heaviside(x.detach(), y.detach()),
                torch.hypot(x, y), torch.sinc(x),
                torch.isclose(x, x + 1e-9).long())


class Cells(nn.Module):
    """Runs single steps of recurrent layers."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTMCell(3, 4)
        self.gru = nn.GRUCell(4, 2)
        self.tanh = nn.RNNCell(2, 3, bias=False)
        self.relu = nn.RNNCell(3, 2, nonlinearity="relu")

    def forward(self, x):
        h, c = self.lstm(x)
        h = self.gru(h)
        return self.relu(self.tanh(h)), c


class Recurrent(nn.Module):
    """Has recurrent layers of all kinds."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.narrow = nn.LSTM(8, 4, proj_size=2, bias=False, batch_first=True)
        self.gru = nn.GRU(2, 3, batch_first=True)
        self.tanh = nn.RNN(3, 4)
        self.relu = nn.RNN(4, 2, nonlinearity="relu", bidirectional=True)

    def forward(self, x, state):
        y, (_, cell) = self.lstm(x)
        y, _ = self.narrow(y)
        y, last = self.gru(y, state)
        y, _ = self.tanh(y.transpose(0, 1))
        y, _ = self.relu(y)
        return y, cell, last


class Losses(nn.Module):
    """Computes losses of all kinds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.rand(5) + 0.5)
        self.register_buffer("sign", torch.randn(4, 5).sign())

    def of_values(self, x, y):
        return (F.mse_loss(x, y), F.l1_loss(x, y[:1], reduction="none"),
                F.smooth_l1_loss(x, y, beta=0.5),
                F.huber_loss(x, y, reduction="sum", delta=0.7))

    def of_probabilities(self, x, y):
        p = torch.sigmoid(y)
        log_p = F.log_softmax(x, 1)
        return (F.binary_cross_entropy(torch.sigmoid(x), p, self.weight),
                F.binary_cross_entropy_with_logits(
                    x, p, self.weight, pos_weight=self.weight),
                F.multilabel_soft_margin_loss(x, p, reduction="none"),
                F.kl_div(log_p, p, reduction="batchmean"),
                F.kl_div(log_p, y, reduction="none", log_target=True),
                F.poisson_nll_loss(x, 4 * p, full=True),
                F.poisson_nll_loss(x.exp(), p, log_input=False))

    def of_margins(self, x, y, labels, several):
        return (F.hinge_embedding_loss(x, self.sign),
                F.margin_ranking_loss(x, y, self.sign, margin=0.1),
                F.soft_margin_loss(x, self.sign, reduction="none"),
                F.cosine_embedding_loss(x, y, self.sign[:, 0], margin=-0.2),
                F.triplet_margin_loss(x, y, y.flip(0), swap=True),
                F.triplet_margin_loss(x, y, y.flip(1), p=3, reduction="none"),
                F.multi_margin_loss(x, labels, p=2, weight=self.weight),
                F.multilabel_margin_loss(x, several, reduction="none"))

    def of_classes(self, x, y, labels):
        options = {"weight": self.weight, "label_smoothing": 0.1}
        return (F.nll_loss(F.log_softmax(x, 1), labels, self.weight,
                           ignore_index=2),
                F.cross_entropy(x, labels, **options, ignore_index=2),
                F.cross_entropy(x, F.softmax(y, 1), **options),
                F.cross_entropy(x.view(2, 5, 2), labels.view(2, 2),
                                reduction="none"),
                F.cross_entropy(x[0], labels[0], reduction="sum"))

    def forward(self, x, y, labels, several):
        return (*self.of_values(x, y), *self.of_probabilities(x, y),
                *self.of_margins(x, y, labels, several),
                *self.of_classes(x, y, labels))


class Sampled(nn.Module):
    """Resizes images, samples them at positions, and adds rows by index."""

    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(6, 3, mode="mean", padding_idx=2)
        self.table = nn.Parameter(torch.randn(5, 2))

    def forward(self, x, grid, theta, ids, offsets, shares):
        sampled = [
            F.grid_sample(x, grid, mode, padding, align)
            for mode in ("bilinear", "nearest", "bicubic")
            for padding in ("zeros", "border", "reflection")
            for align in (False, True)]
        affine = F.affine_grid(theta, [2, 3, 4, 5], align_corners=False)
        volume = torch.stack([grid, 0.5 * grid], 1)
        volume = torch.cat([volume, volume[..., :1]], -1)
        resized = [
            F.interpolate(x, (7, 4), mode="bicubic"),
            F.interpolate(x, (2, 9), mode="bicubic", align_corners=True),
            F.interpolate(x, scale_factor=1.7, mode="bicubic"),
            F.interpolate(x, (2, 4), mode="bilinear", antialias=True),
            F.interpolate(x, (8, 3), mode="bicubic", antialias=True)]
        index = (ids % 4).reshape(2, 4)
        rows = x[:, 0, 0, :4]
        reduced = [rows.scatter_reduce(1, index, rows, how, include_self=own)
                   for how in ("sum", "mean") for own in (False, True)]
        return (*sampled, affine, F.grid_sample(x, affine, align_corners=True),
                F.grid_sample(torch.stack([x, x * x], 2), volume,
                              align_corners=False),
                *resized, self.bags(ids, offsets[:3]),
                F.embedding_bag(ids % 5, self.table, offsets, mode="sum",
                                per_sample_weights=shares,
                                include_last_offset=True),
                F.embedding_bag(index, self.table, mode="sum"), *reduced,
                *(torch.rot90(x, k, (1, 3)) for k in (1, 2, -1)),
                torch.round(x, decimals=1))


def grouped_product(x, weights, ends):
    """Returns F.grouped_mm, which PyTorch lacks in fp64."""
    if x.dtype != torch.float64:
        return F.grouped_mm(x, weights, offs=ends)
    row = torch.arange(len(x)).unsqueeze(1)
    starts = F.pad(ends[:-1], (1, 0))
    return sum(((row >= start) & (row < end)) * (x @ weight)
               for weight, start, end in zip(weights, starts, ends))


class Experts(nn.Module):
    """Each row goes to two of three experts, whose rows are neighbours. Calls
    operators by their other names, takes parts without elements, and has `with`
    blocks."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.up = nn.Parameter(torch.randn(3, 8, 12))
        self.down = nn.Parameter(torch.randn(3, 12, 8))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))

    def forward(self, x):
        shares, experts = torch.topk(torch.softmax(self.router(x), 1), 2, 1)
        with torch.no_grad():
            order = torch.argsort(experts.flatten())
            counts = torch.histc(experts.flatten().float(), 3, 0, 2)
            ends = torch.cumsum(counts, 0, dtype=torch.int32)
            largest = torch.empty(5, 8, dtype=x.dtype)
            torch.mul(x.abs(), 1.5, out=largest)
            largest = largest.amax()
        with torch.autocast("cpu", enabled=False):
            rows = grouped_product(x[order // 2] / largest, self.up, ends)
            rows = grouped_product(F.silu(rows), self.down, ends)
        rows = torch.multiply(rows, shares.flatten()[order].unsqueeze(1))
        back = torch.empty_like(order)
        back[order] = torch.arange(10)
        y = torch.subtract(rows[back].view(5, 2, 8).sum(1), x)
        y = torch.concat([x[:, 3:3], torch.tensor([]), y, y[:, 8:]], 1)
        return (F.pad(y, (0, 0), value=2.0), torch.histc(x, 4),
                torch.histc(x, 5, -1, 1),
                torch.true_divide(torch.absolute(x), torch.arctan(x)),
                torch.greater(x, y).long(), torch.clip(x, -0.5, 1).negative(),
                self.last(x).adjoint(), rows.view(5, 2, 8).T,
                torch.vdot(x[0], y[0, :8]),
                # Nothing for the last two rows.
                grouped_product(x, self.up, torch.clamp(ends, max=3)))


def experts_inputs(generator):
    return {"x": generator.standard_normal((5, 8)).astype(np.float32)}


def sampled_inputs(generator):
    def floats(*shape):
        return generator.standard_normal(shape).astype(np.float32)

    return {"x": floats(2, 3, 5, 6), "grid": floats(2, 4, 3, 2),
            "theta": floats(2, 2, 3), "ids": np.array([5, 2, 0, 3, 1, 2, 4, 0]),
            "offsets": np.array([0, 3, 3, 8]), "shares": floats(8)}


def losses_inputs(generator):
    several = generator.permuted(np.tile(np.arange(5), (4, 1)), axis=1)
    several[:2, 2] = -1
    return {"x": generator.standard_normal((4, 5)).astype(np.float32),
            "y": generator.standard_normal((4, 5)).astype(np.float32),
            "labels": np.array([3, 2, 0, 4]), "several": several}


class Spectra(nn.Module):
    """Computes with complex numbers: Fourier transforms, filters in the
    frequency domain, and rotations of positions."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, 3, 2))
        self.mix = nn.Parameter(torch.randn(3, 2, 2))
        angles = torch.outer(torch.arange(4.0), torch.tensor([1, 0.5, 0.1]))
        self.register_buffer(
            "turns", torch.polar(torch.ones_like(angles), angles).T)
        self.register_buffer("window", torch.hann_window(4))

    def forward(self, x):
        fft, real = torch.fft, torch.view_as_real
        y = fft.fft(x, dim=1, norm="forward")
        filtered = (fft.rfft2(x[..., 0], norm="ortho")
                    * torch.view_as_complex(self.filter))
        pairs = torch.view_as_complex(self.mix)
        first, second = y.chunk(2, dim=2)
        moments = torch.exp(y * 0.1).sum((1, 2), keepdim=True) - 2
        return (fft.irfft2(filtered, s=(4, 5), norm="ortho"),
                fft.fftn(x, dim=(1, 2)).real, fft.ifft2(y, s=(3, 5)).imag,
                fft.irfftn(fft.rfftn(x)), fft.irfft(y, n=6, dim=1),
                torch.stft(x[:, :, 0, 0].repeat(1, 3), 4, 2, win_length=3,
                           window=self.window[:3], return_complex=True).abs(),
                y.abs(), (y + 1).angle(), y.to(x.dtype), real(y / (moments + x)),
                real(x[..., 0] * self.turns.T.unsqueeze(0)[..., :1]),
                real(torch.einsum("bijc,dc->bijd", y, pairs)),
                real(torch.cat([first, -second.conj()], 2).permute(0, 2, 1, 3)),
                real(torch.stack([y, x.to(y.dtype)])[1, :, 1:].flatten(1)),
                real(torch.complex(x, x * x) @ pairs.transpose(0, 1)),
                *(real(part) for part in F.pad(y, (1, 2)).split([2, 3], -1)),
                real(y.flip(1).narrow(2, 1, 2)[:, :1].squeeze((1,))))


def spectra_inputs(generator):
    return {"x": generator.standard_normal((2, 4, 4, 2)).astype(np.float32)}


class Scattered(nn.Module):
    """Reduces elements and rows by index. Zeros, equal elements and elements
    without updates have gradients of their own."""

    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(6, 3, mode="max", padding_idx=2)

    def forward(self, x, y, ids):
        index = torch.tensor([[[2, 0, 2]], [[1, 1, 1]]])
        rows = torch.tensor([2, 0, 2])
        factors = torch.where(x > 0.8, 0.0, x)
        clipped = y.clamp(max=0.5)
        kinds = ("prod", "amax", "amin")
        reduced = [factors.scatter_reduce(2, index, clipped[:, :1, :3], how,
                                          include_self=own)
                   for how in kinds for own in (False, True)]
        by_row = [clipped.index_reduce(1, rows, factors, how, include_self=own)
                  for how in (*kinds, "mean") for own in (False, True)]
        scaled = x.detach().clone()
        scaled.scatter_(1, rows.expand(2, 1, 3), 1.5, reduce="multiply")
        scaled.scatter_(2, index, x.detach()[:, :1, :3], reduce="add")
        return (*reduced, *by_row, scaled,
                ids.scatter_reduce(0, rows, ids[:3], "amax"),
                torch.put(x, rows[:2], y[0, 0, :2]),
                torch.put(x, rows - 3, y[0, 0, :3], accumulate=True),
                self.bags(ids, torch.tensor([0, 3, 3, 7])))


class Contracted(nn.Module):
    """Sums of products in all forms of einsum, attention whose heads share keys
    and values and with masks, dimensions of scalars, and writes to ranges with
    a step."""

    def forward(self, x, y):
        m = y[0]
        square = torch.einsum("bhw,bvw->bhv", y, y)
        products = [torch.einsum(equation, *operands) for equation, operands in (
            ("...hw,...vw", (y, y)), ("hw,vw,bhv->b", (m, m, square)),
            ("ij->i", (m,)), ("i...->...", (x,)), ("ii->i", (m[:, :3],)),
            ("bii,bj->ji", (square, x[:, 0])), ("ij,kj", (m, m)),
            ("bcd,bcd->cd", (x, x[:, :1])),
            ("bcd,bcd->bd", (x, y[:, :1])))]
        heads = x.reshape(2, 1, 4, 3).expand(2, 2, 4, 3)
        shared = F.scaled_dot_product_attention(
            heads.repeat(1, 2, 1, 1), heads, heads * 0.5, enable_gqa=True)
        # The second query has no key.
        kept = torch.tensor([[True, False, True, True], [False] * 4,
                             [True] * 4, [False, True, False, False]])
        bias = torch.where(kept, m[0], -float("inf"))
        masked = [F.scaled_dot_product_attention(heads, heads, heads, mask)
                  for mask in (kept, bias)]
        masked.append(torch.ops.aten._safe_softmax(bias, -1))
        scalar = x.mean()
        scalars = [scalar.cumsum(0), scalar.softmax(-1), scalar.sum(0, keepdim=True),
                   scalar.max(0).values, scalar.index_select(0, torch.tensor([0])),
                   scalar.unsqueeze(0)]
        written = x.clone()
        written[:, ::2] = x[:, :2] * 3
        filled = x.index_fill(1, torch.tensor([2]), scalar)
        return (*products, shared, *masked, *scalars, written, filled,
                torch.rsub(x, scalar, alpha=2))


class Numeric(nn.Module):
    """Calls special functions, cumulative ones, shifts of bits, windows,
    splits, and norms, powers and diagonals of matrices."""

    def of_numbers(self, x, y, ids):
        positive = x * x + 0.1
        return (torch.lgamma(4 * x), torch.digamma(positive),
                torch.erfinv(0.95 * torch.tanh(y)), torch.mvlgamma(positive + 1, 2),
                torch.special.entr(positive), torch.special.ndtr(x),
                torch.special.xlog1py(x, positive), torch.copysign(x, y),
                torch.ldexp(x, torch.tensor(3)), torch.logcumsumexp(x, 2),
                *torch.cummax(y, 1), *torch.cummin(x, 2), torch.msort(x),
                torch.isin(torch.round(y), torch.tensor([-1, 1])).long(),
                torch.signbit(torch.stack([x, -y * 0])).long(),
                torch.add(0.5, x, alpha=2.0), F.rrelu(x, 0.1, 0.2),
                torch.trapezoid(x, dx=0.5, dim=1),
                torch.cumulative_trapezoid(y, x), torch.cartesian_prod(x[0, 0], y[1, 2]),
                torch.combinations(x[1, 0], 3), torch.linalg.vander(y[0], N=3),
                torch.vander(ids, 3))

    def of_matrices(self, x, y):
        norm = torch.linalg.matrix_norm
        square = x[..., :3]
        return (*(norm(x, p) for p in ("fro", 1, -1, float("inf"))),
                torch.linalg.norm(y[0], -float("inf")), torch.linalg.vecdot(x, y),
                torch.linalg.multi_dot([x[0], y[0].T, x[1]]),
                torch.linalg.matrix_power(square, 3), torch.pdist(x[0]),
                torch.renorm(y, 1, 1, 2.0), torch.diagflat(x[0, 0], 1),
                torch.diagonal_scatter(x, y[:, :2, 0], -1, 1, 2))

    def of_bits(self, ids):
        short = ids.int()
        return (ids << 2, ids >> 1, torch.tensor([-5]) >> ids,
                (short << 31 - short).long(),
                torch.bitwise_left_shift(ids, 60))

    def of_sizes(self, x):
        wide = {"dtype": torch.float64}
        windows = (torch.hann_window(5, **wide),
                   torch.hamming_window(4, False, 0.5, **wide),
                   torch.blackman_window(4, **wide),
                   torch.bartlett_window(6, **wide),
                   torch.kaiser_window(5, True, 3.0, **wide),
                   torch.logspace(-1, 1, 3, **wide),
                   torch.fft.fftfreq(5, 0.5, **wide),
                   torch.fft.rfftfreq(4, **wide))
        window = torch.hann_window(6, **wide).to(x.dtype)
        spectrum = torch.stft(x.flatten(), 6, 2, window=window,
                              pad_mode="constant", return_complex=True)
        return (torch.cat(windows).to(x.dtype) * x[0, 0, 0],
                torch.istft(spectrum * 2, 6, 2, window=window, length=23),
                torch.fft.hfft(torch.complex(x, x * x)),
                torch.view_as_real(torch.fft.ihfft(x).resolve_conj()),
                torch.fft.fftshift(x))

    def in_place(self, x, y):
        x = x.clone()
        top, rest = torch.vsplit(x, 2)
        top.hsplit(3)[1].mul_(2)
        rest.mT.add_(1)
        x[0].diagonal(1).copy_(y[0, :, 0])
        return x

    def forward(self, x, y, ids):
        return (*self.of_numbers(x, y, ids), *self.of_matrices(x, y),
                *self.of_bits(ids), *self.of_sizes(x), self.in_place(x, y))


class Random(nn.Module):
    """Draws random numbers. The results are whether their means, limits and
    choices are right."""

    def forward(self, x):
        def draws():
            return torch.empty(4096)

        p = torch.tensor([0.1, 0.0, 0.7, 0.2])
        normal = torch.randn(4096)
        other = torch.normal(torch.zeros(4096), 2.0)
        # Numbers, their mean, least and greatest one.
        drawn = [(normal, 0, -9, 9), (normal ** 2, 1, 0, 81),
                 (other ** 2, 4, 0, 324), (normal * other, 0, -162, 162),
                 (draws().normal_(2, 0.5), 2, -9, 9),
                 (draws().log_normal_(0, 0.2), 1.02, 0, 9),
                 (draws().uniform_(-2, 3), 0.5, -2, 3),
                 (draws().exponential_(2.0), 0.5, 0, 18),
                 (torch.rand(4096), 0.5, 0, 1),
                 (torch.randint(3, 6, (4096,)), 4, 3, 5),
                 (torch.randint_like(normal, 3), 1, 0, 2),
                 (draws().bernoulli_(0.3), 0.3, 0, 1),
                 (torch.bernoulli(torch.full((4096,), 0.7)), 0.7, 0, 1),
                 (torch.multinomial(p, 4096, True), 2, 0, 3),
                 (F.rrelu(-torch.ones(4096), 0.1, 0.5, True), -0.3, -0.5, -0.1)]
        numbers = torch.stack([row[0] for row in drawn]).float()
        mean, least, greatest = torch.tensor([row[1:] for row in drawn]).T
        right = (((numbers.mean(1) - mean).abs() < 0.2)
                 & (numbers.amin(1) >= least - 1e-6)
                 & (numbers.amax(1) <= greatest + 1e-6))
        two = torch.multinomial(p.repeat(64, 1), 2)
        return (right.long(), (two == 1).sum(), (two[:, 0] == two[:, 1]).sum(),
                torch.randperm(100).sort()[0], 2 * x)


def random_inputs(generator):
    return {"x": generator.standard_normal(3).astype(np.float32)}


def numeric_inputs(generator):
    return {**functions_inputs(generator), "ids": np.array([0, 1, 3])}


def scattered_inputs(generator):
    return {**functions_inputs(generator),
            "ids": np.array([5, 2, 0, 3, 1, 2, 4, 0])}


class Pooling(nn.Module):
    """Pools lines, images and volumes, and convolves them."""

    def __init__(self):
        super().__init__()
        self.grow = nn.ConvTranspose3d(2, 4, (3, 2, 1), (2, 1, 2), 1,
                                       (1, 0, 1), groups=2)
        self.mix = nn.Conv1d(4, 2, 3, padding="same", padding_mode="circular")
        self.stretch = nn.ConvTranspose1d(2, 1, 2, 2, output_padding=2,
                                          dilation=3)
        self.register_buffer("samples", torch.rand(1, 4, 2))

    def forward(self, x):
        y = self.grow(x)
        volumes = [
            F.avg_pool3d(y, 2, 2, 1, ceil_mode=True, count_include_pad=False),
            F.avg_pool3d(y[0], (2, 1, 3), divisor_override=5),
            F.max_pool3d(y, (2, 3, 2), 2, 1, ceil_mode=True),
            *F.max_pool3d(y, 2, 1, dilation=(1, 2, 1), return_indices=True),
            F.adaptive_avg_pool3d(y, (2, 3, None)),
            *F.adaptive_max_pool3d(y, (3, None, 2), return_indices=True),
            F.lp_pool3d(y.abs() + 1, 3, 2),
            F.local_response_norm(y, 3)]
        image = y[:, :, 1]
        images = [
            F.avg_pool2d(image, 3, 2, 1, ceil_mode=True),
            *F.max_pool2d(image[0], (3, 2), 2, 1, return_indices=True),
            *F.adaptive_max_pool2d(image, (2, 3), return_indices=True),
            *F.fractional_max_pool2d(image, 2, (2, 3), return_indices=True,
                                     _random_samples=self.samples)]
        pooled = F.max_pool2d(image, 2, 1, return_indices=True)
        images.append(F.max_unpool2d(*pooled, 2, 1))
        pooled = F.max_pool3d(y[0], 2, return_indices=True)
        volumes.append(F.max_unpool3d(*pooled, 2, output_size=y[0].shape[1:]))
        images += [F.pad(image, (1, 2, 0, -1), mode="replicate"),
                   F.pad(image[0], (1, 1), mode="reflect", value=0.0),
                   F.pad(image, (2, -1, 0, 0), mode="circular")]
        line = self.mix(image[0, :, 0])
        lines = [
            self.stretch(line),
            F.avg_pool1d(line, 2, 1, 1, count_include_pad=False),
            *F.max_pool1d(line, 2, dilation=2, return_indices=True),
            F.adaptive_avg_pool1d(line, 2), F.adaptive_max_pool1d(line, 3),
            torch.sign(line)]
        return (*volumes, *images, *lines)


def pooling_inputs(generator):
    return {"x": generator.standard_normal((1, 2, 3, 4, 5)).astype(np.float32)}


def recurrent_inputs(generator):
    return {"x": generator.standard_normal((2, 5, 3)).astype(np.float32),
            "state": generator.standard_normal((1, 2, 3)).astype(np.float32)}


def functions_inputs(generator):
    return {name: generator.standard_normal((2, 3, 4)).astype(np.float32)
            for name in "xy"}


def cells_inputs(generator):
    return {"x": generator.standard_normal((2, 3)).astype(np.float32)}


def language_inputs(generator):
    ids = generator.integers(0, 11, (2, 6))
    labels = np.where(ids == 0, -100, generator.integers(0, 11, (2, 6)))
    return {"ids": ids, "labels": labels}


def segmenter_inputs(generator):
    return {"x": generator.standard_normal((2, 2, 8, 12)).astype(np.float32)}


PROGRAMS = {"language": (Language, language_inputs),
            "segmenter": (Segmenter, segmenter_inputs),
            "recurrent": (Recurrent, recurrent_inputs),
            "functions": (Functions, functions_inputs),
            "places": (Places, functions_inputs),
            "sampled": (Sampled, sampled_inputs),
            "experts": (Experts, experts_inputs),
            "spectra": (Spectra, spectra_inputs),
            "scattered": (Scattered, scattered_inputs),
            "contracted": (Contracted, functions_inputs),
            "numeric": (Numeric, numeric_inputs),
            "random": (Random, random_inputs),
            "rearranged": (Rearranged, functions_inputs),
            "vectors": (Vectors, functions_inputs),
            "cells": (Cells, cells_inputs),
            "losses": (Losses, losses_inputs),
            "pooling": (Pooling, pooling_inputs)}
