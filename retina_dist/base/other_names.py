"""What other tools call the values of our settings and the entries of our groups."""

from collections.abc import Collection
from difflib import get_close_matches

# Of a setting or group, by its last part: our value, and what Lightning, torchvision, ultralytics,
# Detectron2, timm, Albumentations and others write for it, in lower case, with hyphens. Where none
# of our values is meant, a clause says what to do.
_TABLE = """
precision fp32: 32 32-true 32-full float32 float fp-32 single full
precision fp16: 16 16-mixed 16-true float16 half fp16-mixed mixed-float16 amp mixed
precision bf16: bf16-mixed bf16-true bfloat16 mixed-bfloat16
batch_size give one; in a training, trainer.accumulate=auto fits it into the memory: -1 auto
save_top_k give as many as there are validations to keep all, as 1000: -1
num_workers give 0 to read in the training process, or a number of processes: -1
norm bn: batchnorm batch-norm batchnorm2d batch
norm sync_bn: syncbn sync-batchnorm syncbatchnorm
norm frozen_bn: frozenbn frozen frozen-batchnorm frozenbatchnorm frozenbatchnorm2d
weights give model.weights=COCO_V1: coco mscoco retinanet
weights give model.backbone_weights=DEFAULT, or to a classifier \
model.weights=ResNet50_Weights.IMAGENET1K_V1: imagenet imagenet1k pretrained
weights give the name of the network too, as ResNet50_Weights.IMAGENET1K_V1: default \
imagenet1k-v1 imagenet1k-v2
monitor coco/ap: map ap bbox-map map50-95 coco/bbox-map metrics/map50-95(b)
monitor coco/ap50: map50 ap50 map-50
monitor val/top1: accuracy acc top1 acc1 val-acc val-accuracy val/acc
monitor val/top5: top5 acc5
monitor val/roc_auc: auc roc-auc auroc val-auc val/auc rocauc
monitor val/sensitivity: recall tpr val/recall
monitor val/balanced_accuracy: balanced-acc bacc balanced-accuracy-score
monitor give val/balanced_accuracy for a classifier, coco/AP50 for a detector: f1 f1-score \
val/f1 macro-f1
monitor val/loss: loss eval-loss valid-loss
monitor_mode min: minimize lower decrease down
monitor_mode max: maximize higher increase up
split val: valid validation dev eval evaluation
split test: testing
split give one, and run it for each: all both trainval train+val
val_split val: valid validation dev eval evaluation
val_split test: testing
val_split give a share as data.val_fraction=0.2: 0.05 0.1 0.15 0.2 0.25 0.3
format voc: pascal pascal-voc pascalvoc xml
format yolo: ultralytics darknet txt yolov5 yolov8 yolo11
format coco: json coco-json cocojson
format huggingface: hf imagefolder datasets
format auto: roboflow detection mixed folder
format leave it out, and the error names what converts it: tfrecord kitti labelbox widerface \
wider-face fiftyone datumaro supervisely
format convert it to COCO json: lmdb parquet pickle mat hdf5
format openimages: oid open-images
format csv: tsv pandas keras-retinanet
split give annotations=FILE images=FOLDER of these images: train training
box_format xyxy: corners ltrb x1y1x2y2 voc pascal-voc
box_format xywh: ltwh coco
box_format leave it out for YOLO, and write other boxes in pixels as xywh or xyxy: cxcywh yolo \
center xyxyn xywhn cxcywhn normalized relative albumentations
box_loss giou: iou diou ciou iouloss giouloss
box_loss smooth_l1: smoothl1 smoothl1loss huber
box_loss l1: l1loss mae
gradient_clip_algorithm global_norm: norm l2
lr_rule none: false off
compression fp16: compression.fp16 fp16-compress-hook half float16
compression bf16: bf16-compress-hook bfloat16
compression none: compression.none false off
augment randaugment: ra rand randaug rand-augment rand-m9-mstd0.5 rand-m9-mstd0.5-inc1 \
rand-m7-mstd0.5-inc1
augment trivialaugment: ta ta-wide trivial trivialaugmentwide
missing_images skip: ignore warn drop
bad_images skip: ignore warn drop
optimizer sgd: momentum nesterov
schedule multistep: step steplr multisteplr step-lr piecewise
schedule cosine: cos cosinelr cosineannealing cosineannealinglr cosine-annealing cosine-with-warmup
schedule constant: constantlr constant-with-warmup fixed none
schedule take cosine, or write one as docs/extending.md shows: onecycle onecyclelr one-cycle \
linear poly polynomial polynomiallr exponential exponentiallr plateau reducelronplateau cyclic \
cycliclr cosine-with-restarts cosineannealingwarmrestarts inverse-sqrt
key labels: classes class cls category category-id class-id category-ids class-ids pred-classes
key boxes: bbox bboxes xyxy box pred-boxes
key scores: conf confidence score confidences probs
key boxes are x1, y1, x2, y2 in ["boxes"], and the keys boxes, scores and labels: xywh xywhn xyxyn
key labels are numbers in ["labels"], and their names are in categories.names of the detector: \
names class-name name label-names
key use python -m retina_dist.predict, which draws pictures: plot show save render
key make a table of ["boxes"], ["scores"] and ["labels"], each with tolist(): pandas to-df \
to-dataframe tojson to-json to-pandas
key there are no tracks; leave it out: id track-id track-ids ids
key boxes alone are found, in ["boxes"]: masks keypoints mask
hydra/launcher submitit_slurm: slurm submitit
hydra/launcher submitit_local: local
hydra/launcher joblib: parallel multiprocessing
strategy ddp: distributeddataparallel ddp-spawn nccl gloo torch fsdp fsdp2 deepspeed \
ddp-find-unused-parameters-true
mlflow write logging.mlflow_uri=URI: mlruns ./mlruns localhost:5000 http://localhost:5000 \
http://127.0.0.1:5000
strategy horovod: hvd
strategy single: none single-device
strategy give it as strategy.device, in Python StrategyConfig(device=…): cuda gpu cpu mps cuda:0
checkpoint give the folder of the run, or its .pt file: yaml yml html csv json npz jpg png txt log
checkpoint it is an exported model, for other runtimes, so give the run or checkpoint that it was \
made of, such as runs/NAME: onnx pt2 engine plan trt tflite torchscript h5 keras mlpackage pb
ending give .onnx, which trtexec --onnx=FILE converts: .engine .trt .plan
ending give .onnx, which the tools of this format convert: .tflite .mlmodel .mlpackage .xml .bin .pb
ending give .pt2, or .pt for a state_dict: .pth .torchscript .ts .ckpt .safetensors
task detection: detect det object-detection boxes
task classification: classify cls image-classification
command train: fit finetune fine-tune resume sweep tune
command evaluate: val eval test validate metrics
command predict: detect infer inference track demo classify
command doctor: check analyze analyse anchors lint verify stats
command report: plot visualize show
command convert: import
command shards: pack webdataset shard
command serve: deploy server api
"""


_MEANT: dict[tuple[str, str], str] = {}
for _line in _TABLE.strip().splitlines():
    _ours, _words = _line.split(": ")
    _name, _value = _ours.split(maxsplit=1)
    _MEANT |= {(_name, _word): _value for _word in _words.split()}


def value_meant(
    key: str, value: object, options: Collection[object], cutoff: float = 0.6
) -> object:
    """The one of `options` that other tools call `value`, or that is spelt like it, or a clause
    that says what to do; else "".

    >>> value_meant("trainer.precision", "16-mixed", ["fp32", "fp16"])
    'fp16'
    """
    name = key.removesuffix(".name").rpartition(".")[2]
    word = str(value).lower()
    by_spelling = {str(option).lower(): option for option in options}
    meant = _MEANT.get((name, word.replace("_", "-")), "")
    if " " in meant:
        return meant
    near_words = get_close_matches(word, by_spelling, 1, cutoff)
    for near in [meant, meant.rpartition("/")[2], *near_words]:  # coco/ap is AP in a result
        if near in by_spelling:
            return by_spelling[near]
    return ""
