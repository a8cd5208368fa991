from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
import simplejpeg
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from dpca.storage.errors import DataError
from dpca.storage.images import MAX_PIXELS, DecodeOptions, decode
from tests.storage.sources.made_sources import encoded, jpeg_bomb, pixels, png_bomb, tiff_bomb, truth, webp_bomb

GRAY, RGB = pixels(channels=1), pixels()
ALPHA = np.linspace(0, 255, 24 * 20).astype(np.uint8).reshape(24, 20)


def refused(payload: bytes, rules: DecodeOptions | None = None) -> str:
    with pytest.raises(DataError) as caught:
        decode(payload, rules)
    message = str(caught.value)
    assert "\n" not in message
    return message


def over_white(color: np.ndarray[Any, Any], alpha: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    a = (alpha / 255.0)[..., None] if color.ndim == 3 else alpha / 255.0
    return np.rint(color * a + 255.0 * (1 - a))


@pytest.mark.parametrize("picture", [GRAY, RGB], ids=["gray", "rgb"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"quality": 30, "subsampling": 2}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ],
)
def test_pixels_are_those_of_pillow(picture: np.ndarray[Any, Any], kind: str, options: dict[str, Any]) -> None:
    payload = encoded(picture, kind, **options)
    decoded = decode(payload)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, truth(payload))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    payload = encoded(RGB, kind, exif=exif)
    with Image.open(io.BytesIO(payload)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    decoded = decode(payload)
    assert decoded.shape == ((20, 24, 3) if orientation > 4 else (24, 20, 3))
    np.testing.assert_array_equal(decoded, upright)
    # a stack of that shape accepts it, although its header says the other way round
    decode(payload, DecodeOptions().with_first_image(decoded, "first.jpg"))


XMP = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation="6"></x:xmpmeta>'


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\xff\xfe\0\x06\xff\xda\0\0",  # a comment that looks like the first scan
        b"\xff\xe2\0\x04\xff\xd9",  # other metadata that looks like the end
        b"\xff\xff\xff",  # fill bytes
    ],
)
@pytest.mark.parametrize("how", ["exif", "xmp"])
def test_the_orientation_is_found_behind_any_segment(how: str, before: bytes) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = exif.tobytes() if how == "exif" else XMP
    segment = b"\xff\xe1" + (len(content) + 2).to_bytes(2) + content
    payload = encoded(RGB, "JPEG")
    turned = payload[:2] + before + segment + payload[2:]
    np.testing.assert_array_equal(decode(turned), np.rot90(truth(payload), -1))


@pytest.mark.parametrize("picture", [GRAY, RGB], ids=["gray", "rgb"])
def test_pillow_does_not_open_plain_jpegs(picture: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [encoded(picture, "JPEG", progressive=progressive) for progressive in (False, True)]
    expected = [truth(payload) for payload in payloads]
    monkeypatch.setattr(JpegImageFile, "_open", lambda self: pytest.fail("opened"))
    for payload, pixels_of_pillow in zip(payloads, expected, strict=True):
        np.testing.assert_array_equal(decode(payload), pixels_of_pillow)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("picture", [GRAY[:20], RGB[:20]], ids=["gray", "rgb"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"color": "rgb"},
        {"color": "gray"},
        {"crop": (8, 8), "resize": (20, 20)},
        {"crop": (8, 6)},
        {"resize": (20, 20)},
    ],
)
def test_pixels_are_written_to_a_given_array(
    picture: np.ndarray[Any, Any], kind: str, orientation: int, options: dict[str, Any]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    payload = encoded(picture, kind, exif=exif)
    rules = DecodeOptions(**options)
    expected = decode(payload, rules)
    stack = np.zeros((3, *expected.shape), np.uint8)
    assert np.shares_memory(decode(payload, rules, stack[1]), stack)
    np.testing.assert_array_equal(stack[1], expected)
    assert not stack[[0, 2]].any()


def test_a_gray_image_is_written_to_a_sample_in_color() -> None:
    sample = np.zeros((24, 20, 3), np.uint8)
    decode(encoded(GRAY, "JPEG"), DecodeOptions().with_first_image(sample, "first.jpg"), sample)
    np.testing.assert_array_equal(sample, np.repeat(truth(encoded(GRAY, "JPEG"))[..., None], 3, -1))


def test_an_image_of_8_bits_is_refused_in_a_stack_of_16_bits() -> None:
    sample = np.zeros((24, 20), np.uint16)
    with pytest.raises(DataError, match="type"):
        decode(encoded(GRAY, "JPEG"), DecodeOptions().with_first_image(sample, "first.png"), sample)


def test_a_wrong_turn_is_another_size() -> None:
    settled = DecodeOptions().with_first_image(np.empty((20, 24, 3), np.uint8), "first.png")
    assert "24 x 20 pixels" in refused(encoded(RGB), settled)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's own warning
def test_broken_exif_beside_sound_pixels_does_not_matter() -> None:
    payload = encoded(RGB, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    np.testing.assert_array_equal(decode(payload), truth(payload))


def test_one_bit_becomes_eight() -> None:
    bits = GRAY > 128
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(bits))), bits * np.uint8(255))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_palettes_become_rgb(kind: str) -> None:
    image = Image.fromarray(RGB).quantize(64)
    payload = encoded(image, kind)
    np.testing.assert_array_equal(decode(payload), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("color", [GRAY, RGB], ids=["LA", "RGBA"])
def test_transparency_is_composited_over_white(kind: str, color: np.ndarray[Any, Any]) -> None:
    gray = color.ndim == 2
    if gray and kind == "WEBP":
        pytest.skip("WebP has no gray")
    both = np.concatenate([color[..., None] if gray else color, ALPHA[..., None]], -1)
    payload = encoded(both, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    decoded = decode(payload)
    assert decoded.shape == color.shape
    np.testing.assert_array_equal(decoded, over_white(color.astype(float), ALPHA))


def test_opaque_pixels_are_kept_exactly() -> None:
    opaque = np.concatenate([RGB, np.full_like(RGB[..., :1], 255)], -1)
    np.testing.assert_array_equal(decode(encoded(opaque)), RGB)


@pytest.mark.parametrize("depth", [8, 16])
def test_a_transparent_gray_value_becomes_white(depth: int) -> None:
    values = GRAY if depth == 8 else GRAY.astype(np.uint16) * 100
    see_through = int(values[3, 4])
    decoded = decode(encoded(values, transparency=see_through))
    assert decoded.dtype == values.dtype
    np.testing.assert_array_equal(decoded, np.where(values == see_through, 2**depth - 1, values))


def test_a_transparent_color_becomes_white() -> None:
    see_through = tuple(int(value) for value in RGB[3, 4])
    transparent = np.equal(RGB, see_through).all(-1, keepdims=True)
    expected = np.where(transparent, 255, RGB)
    np.testing.assert_array_equal(decode(encoded(RGB, transparency=see_through)), expected)


def test_a_transparent_palette_entry_becomes_white() -> None:
    image = Image.fromarray(RGB).quantize(16)
    index = np.asarray(image)
    expected = np.where((index == 5)[..., None], 255, np.asarray(image.convert("RGB")))
    np.testing.assert_array_equal(decode(encoded(image, transparency=5)), expected)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb_by_pillow(kind: str) -> None:
    payload = encoded(Image.fromarray(RGB).convert("CMYK"), kind)
    with Image.open(io.BytesIO(payload)) as image:
        assert image.mode == "CMYK"
        expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(decode(payload), expected)


@pytest.mark.parametrize("order", ["<", ">"])
def test_sixteen_bit_gray_is_kept(order: Any) -> None:
    values = np.arange(24 * 20, dtype=np.uint16).reshape(24, 20) * 136
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, byteorder=order)
    for payload in (encoded(values), buffer.getvalue()):
        decoded = decode(payload)
        assert decoded.dtype == np.dtype(np.uint16)
        assert decoded.dtype.isnative
        np.testing.assert_array_equal(decoded, values)


def test_float_tiff_is_kept() -> None:
    values = np.linspace(-1e6, 1e-6, 24 * 20, dtype=np.float32).reshape(24, 20)
    decoded = decode(encoded(values, "TIFF"))
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_float_pixels_must_be_finite(value: float) -> None:
    values = np.zeros((24, 20), np.float32)
    values[3, 4] = value
    assert f"{value} at row 3, column 4" in refused(encoded(values, "TIFF"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((9, 8, 3), np.uint16), "16 bits"),
        (np.zeros((9, 8), np.int32), "32-bit"),
        (np.zeros((9, 8), np.int16), "signed integers"),
        (np.zeros((9, 8), np.float64), "64-bit floats|unsupported kind"),  # by the version of Pillow
    ],
)
def test_what_pillow_would_silently_cut_is_refused(values: np.ndarray[Any, Any], words: str) -> None:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, photometric="rgb" if values.ndim == 3 else "minisblack")
    assert re.search(words, refused(buffer.getvalue()))


@pytest.mark.parametrize(("kind", "options"), [("TIFF", {}), ("WEBP", {}), ("PNG", {})])
def test_more_than_one_frame_is_refused(kind: str, options: dict[str, Any]) -> None:
    frames = [Image.fromarray(pixels(i)) for i in range(3)]
    payload = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert "more than one frame" in refused(payload)


def test_the_main_picture_of_a_jpeg_with_previews_is_read() -> None:
    payload = encoded(Image.fromarray(RGB), "MPO", save_all=True, append_images=[Image.fromarray(pixels(1, 8, 8))])
    image: Any
    with Image.open(io.BytesIO(payload)) as image:
        assert image.n_frames == 2
        main = np.asarray(image)
    np.testing.assert_array_equal(decode(payload), main)


@pytest.fixture
def _undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_, **__: pytest.fail("decoded"))


@pytest.mark.parametrize("bomb", [png_bomb(100_000, 100_000), jpeg_bomb(), webp_bomb(), tiff_bomb()])
@pytest.mark.usefixtures("_undecoded")
def test_bombs_are_refused_by_their_header(bomb: bytes) -> None:
    assert len(bomb) < 20_000
    message = refused(bomb)
    assert "pixels" in message
    assert f"{MAX_PIXELS:,}" in message


@pytest.mark.usefixtures("_undecoded")
def test_another_size_is_refused_by_its_header() -> None:
    settled = DecodeOptions().with_first_image(RGB, "first.jpg")
    message = refused(png_bomb(9000, 9000), settled)
    for words in ("9000 x 9000 pixels", "24 x 20", "'first.jpg'", "resize=(24, 20)", "crop=(24, 20)"):
        assert words in message
    assert "9 x 20 pixels" in refused(encoded(RGB[:9], "JPEG"), settled)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"hello, I am a text file",
        b"GIF89a" + bytes(100),
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"II*\0",
        b"RIFF    WEBP",
    ],
)
def test_what_is_no_image_is_refused(payload: bytes) -> None:
    assert refused(payload).startswith(("is empty", "is broken", "has no supported image format"))


FORMS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("PNG", {}),
    ("WEBP", {}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
]


@pytest.mark.parametrize(("kind", "options"), FORMS)
def test_a_cut_file_is_refused_or_whole(kind: str, options: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    payload = encoded(pixels(3, 60, 70), kind, **options)
    expected = truth(payload)
    n_refused = 0
    for cut in [*range(1, 40), *range(40, len(payload), 37)]:
        try:
            decoded = decode(payload[:-cut])
        except DataError:
            n_refused += 1
        else:
            # what follows the last pixel (an end mark, metadata) is not missed
            np.testing.assert_array_equal(decoded, expected)
    assert n_refused > 20
    capfd.readouterr()  # libtiff speaks its mind on standard error


@pytest.mark.parametrize(("kind", "options"), FORMS)
@pytest.mark.filterwarnings("ignore")  # of Pillow about the metadata we break
def test_damage_never_raises_anything_else(
    kind: str, options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    sound = encoded(pixels(3, 60, 70), kind, **options)
    rng = np.random.default_rng(7)
    rules = DecodeOptions().with_first_image(truth(sound), "first")
    for _ in range(150):
        payload = bytearray(sound)
        for place in rng.integers(0, len(payload), rng.integers(1, 6)):
            payload[place] = rng.integers(256)
        message = ""
        try:
            assert decode(bytes(payload), rules).shape == (60, 70, 3)
        except DataError as error:
            message = str(error)
        assert "\n" not in message
        assert " at 0x" not in message
    capfd.readouterr()


class TestRules:
    def test_gray_is_repeated_in_a_color_stack(self) -> None:
        for rules in (DecodeOptions(color="rgb"), DecodeOptions().with_first_image(RGB, "first.png")):
            np.testing.assert_array_equal(decode(encoded(GRAY), rules), np.stack([GRAY] * 3, -1))

    def test_color_in_a_gray_stack_is_refused(self) -> None:
        message = refused(encoded(RGB), DecodeOptions().with_first_image(GRAY, "first.png"))
        assert "'first.png'" in message
        assert "--color rgb" in message

    def test_color_can_be_made_gray(self) -> None:
        expected = np.asarray(Image.fromarray(RGB).convert("L"))
        np.testing.assert_array_equal(decode(encoded(RGB), DecodeOptions(color="gray")), expected)
        np.testing.assert_array_equal(decode(encoded(GRAY), DecodeOptions(color="gray")), GRAY)

    def test_crop_takes_the_center(self) -> None:
        np.testing.assert_array_equal(decode(encoded(RGB), DecodeOptions(crop=(10, 7))), RGB[7:17, 6:13])
        assert "crop of 25 x 7" in refused(encoded(RGB), DecodeOptions(crop=(25, 7)))

    def test_resize_is_pillows_lanczos(self) -> None:
        for picture in (GRAY, RGB):
            expected = np.asarray(Image.fromarray(picture).resize((9, 31), Image.Resampling.LANCZOS))
            np.testing.assert_array_equal(decode(encoded(picture), DecodeOptions(resize=(31, 9))), expected)

    def test_crop_comes_before_resize(self) -> None:
        center = Image.fromarray(RGB[2:22])
        expected = np.asarray(center.resize((8, 8), Image.Resampling.LANCZOS))
        np.testing.assert_array_equal(decode(encoded(RGB), DecodeOptions(crop=(20, 20), resize=(8, 8))), expected)

    def test_resize_keeps_sixteen_bits(self) -> None:
        values = GRAY.astype(np.uint16) * 200
        decoded = decode(encoded(values), DecodeOptions(resize=(12, 10)))
        assert decoded.dtype == np.uint16
        expected = np.asarray(Image.fromarray(values.astype(np.float32)).resize((10, 12), Image.Resampling.LANCZOS))
        np.testing.assert_allclose(decoded, expected, atol=0.5)

    def test_a_right_sized_image_is_not_resampled(self) -> None:
        np.testing.assert_array_equal(decode(encoded(RGB), DecodeOptions(resize=(24, 20))), RGB)

    def test_another_type_is_refused(self) -> None:
        message = refused(encoded(GRAY.astype(np.uint16)), DecodeOptions().with_first_image(GRAY, "first.png"))
        for words in ("uint16", "uint8", "'first.png'"):
            assert words in message

    @pytest.mark.parametrize(
        "options",
        [
            {"color": "blue"},
            {"crop": (0, 4)},
            {"resize": (4, -1)},
            {"resize": (10**6, 10**6)},
            {"crop": (4,)},
        ],
    )
    def test_nonsense_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(DataError, match=next(iter(options))):
            DecodeOptions(**options)


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    mode=st.sampled_from(["L", "RGB", "CMYK"]),
    options=st.fixed_dictionaries(
        {"quality": st.integers(1, 100), "progressive": st.booleans()},
        optional={"subsampling": st.integers(0, 2), "restart_marker_blocks": st.integers(1, 5)},
    ),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3),
    kept=st.sampled_from([1.0, 1.0, 0.97, 0.5]),
)
@settings(deadline=None, max_examples=100)
def test_any_jpeg_has_the_pixels_that_pillow_gives_or_is_refused_as_there(
    seed: int,
    size: tuple[int, int],
    mode: str,
    options: dict[str, Any],
    changes: list[tuple[float, int]],
    kept: float,
) -> None:
    """The two decoders return the same pixels for intact and for damaged images."""
    shape = size if mode == "L" else (*size, len(mode))
    noise = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    payload = bytearray(encoded(Image.fromarray(noise, mode), "JPEG", **options))
    for where, value in changes:
        payload[int(where * len(payload))] = value
    del payload[int(kept * len(payload)) :]
    try:
        image: Any = JpegImageFile(io.BytesIO(payload))
        expected = np.asarray(image.convert("RGB") if image.mode == "CMYK" else image)
    except Exception:
        refused(bytes(payload))
    else:
        np.testing.assert_array_equal(decode(bytes(payload)), expected)
