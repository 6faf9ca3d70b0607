"""The setting meant by an unknown key: the closest spelling, or what other tools call it."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from retina_dist.base.files import folder_of
from retina_dist.base.settings import settings_by_key
from retina_dist.base.text import as_override, rows_of

# how files in a folder of data end
OF_DATA = (".json", ".csv", ".xml", "data.yaml", "data.yml")

# What Lightning, ultralytics, Detectron2 and MMDetection call our settings, by the last part of
# the key in lower case. Of the keys after the colon, the first that the command has is meant; one
# with spaces is a clause.
_TABLE = """
epochs epoch e max_epochs num_epochs num_train_epochs total_epochs n_epochs nb_epochs nepochs: \
trainer.max_duration=12epochs
max_steps max_iter max_iters num_steps num_iterations total_iters iterations iters num_iters \
steps: steps=3 | trainer.max_duration=90ksteps
lr_max max_lr basic_lr_per_img lr learning_rate base_lr lr0: optimizer.lr
lr_scheduler scheduler: schedule
optim optimiser: optimizer
warmup_epochs lr_warmup_epochs warmup_ratio: schedule.warmup=1epoch
warmup_iters warmup_steps num_warmup_steps lr_warmup warmup: warmup=3 | schedule.warmup=1000steps
ims_per_batch bs b batchsize: batch_size | data.batch_size | other
a: run
n_jobs workers j n_workers num_workers: num_workers | data.num_workers | leave it out
size: shard_mb=256 | data.min_sizes=[640] | data.image_size | size=[640,640] | the size of the \
training is used; leave it out
compression=gzip compression=zip: files are stored as they are; leave it out
imgsz img_size image_size img_scale min_size_train min_size crop_size target_size: \
canvases=[[640,640]] | data.min_sizes=[640] | data.image_size | size=[640,640] | the size of the \
training is used; leave it out
min_sizes: data.min_sizes | data.image_size | size=[640,640]
max_size_train: data.max_size
accumulate_grad_batches: trainer.accumulate
gradient_clip_val clip_grad: trainer.gradient_clip
check_val_every_n_epoch val_interval: trainer.validate_every=1epoch
val_check_interval eval_period: trainer.validate_every=1000steps
solver.checkpoint_period: trainer.checkpoint_every=1000steps
snapshot_epoch checkpoint_period save_period: trainer.checkpoint_every=1epoch
log_every_n_steps: trainer.log_every
amp mixed_precision use_amp: trainer.precision=bf16
amp=false mixed_precision=false use_amp=false solver.amp.enabled=false: trainer.precision=fp32 | \
precision=fp32
devices gpus num_gpus num_nodes num_processes num_machines nproc world_size processes: processes \
| the launcher starts the processes: torchrun --nproc-per-node N
weights pretrained load_from: checkpoint | model.weights | model.backbone_weights
ckpt_path resume_from resume_from_checkpoint: resume | checkpoint
ckpt_dir log_path summary_dir exp_name job_name default_root_dir save_dir work_dir project \
output: output_dir
coco_path validation_data data_dir data_path dataset dataset_dir dataset_path datadir \
train_dir train_path val_dir val_path: data.root | root
data d train: data.root | root | input
logger loggers report_to wandb clearml comet tracking neptune aim: see logging.tensorboard and \
logging.mlflow_uri; docs/extending.md has a logger for others
freeze freeze_backbone frozen_stages: see model.trainable_layers, how many stages of a detector's \
body train, counted from the last, 0 for none; every layer of a classifier is trained
trainable_layers: model.trainable_layers | every layer of a classifier is trained; leave it out
–m –multirun —m —multirun ––multirun –cfg —cfg –help —help –config_dir —config_dir: write its dash \
as a hyphen, - or --, as -m or --multirun
loss cls_loss: see model.focal_alpha, model.focal_gamma and model.box_loss
kmeans anchors num_anchors: see model.anchor_sizes and model.aspect_ratios
channels num_channels in_channels in_chans color_mode color input.format color_format \
channel_order to_rgb bgr_to_rgb: images are RGB; leave it out
format: data.format | output=model.onnx | the format is recognised; leave it out
split: data.val_split
help: write --help, alone
_base_ base inherit inherits extends __base__: write defaults: and below it - NAME of \
the other recipe
print_config show_config dump_config print_cfg: give --cfg job
detect=train segment=train classify=train detect=val yolo=detect yolo=train train= fit= segment= \
detect= classify=: leave it out
exp experiments recipes recipe preset: write experiment=NAME
opset half simplify dynamic: leave it out
net backbone model.name arch: model.backbone | model.architecture
config config_file cfg hyp: put it into FOLDER/experiment and give --config-dir FOLDER \
experiment=NAME, with # @package _global_ as its first line, or for a run's config.yaml give \
--config-dir RUN --config-name config
checkpoint: run | evaluate, predict, serve and export take a checkpoint; train takes resume=RUN, \
and the doctor checks data
multi_run sweep evolve hyperparameter_search: give --multirun to train with each of several values
conf confidence threshold score_thr: score_threshold | model.score_threshold
run: checkpoint | a | resume
image: input
input: root | data.root | images
random_seed random_state manual_seed randomness.seed seed_everything: seed
early_stop num_epochs_no_improve min_delta patience_epochs patience early_stopping: trainer.patience
classes: model.num_classes | each class of the data is taken; leave it out
nc n_classes num_class num_classes: model.num_classes | the data decides; leave it out
data.nc data.num_classes label_names names class_names: the data names its classes; leave it out
mosaic copy_paste augment augmentation augmentations: see data.hflip, data.photometric and \
data.scale_jitter for detection, data.mixup and data.cutmix for classification
fliplr flip random_flip horizontal_flip: data.hflip
flipud vertical_flip: data.vflip
ema_rate swa ema model_ema use_ema ema_momentum model_ema_decay: trainer.ema_decay=0.9998
mean std normalize normalization pixel_mean pixel_std image_mean image_std: images are normalised \
as for the weights of ImageNet; leave it out
hsv_h hsv_s hsv_v color_jitter brightness contrast saturation hue: data.photometric=0.5 | \
data.augment=randaugment
no_aug_epochs enable_mixup mosaic_prob mixup_prob rotation_range zoom_range shear_range degrees \
rotate rotation translate shear perspective bgr close_mosaic mixup_alpha cutmix_alpha \
auto_augment autoaugment transforms transform data_augmentation rand_augment: see data.hflip, \
data.photometric and data.scale_jitter for detection, data.augment, data.mixup and data.cutmix \
for classification
multiscale_range multi_scale scale_range: give several of data.min_sizes
scale: data.scale_jitter=[0.8,1.25] | data.crop_scale=[0.25,1.0]
resize.scale train_pipeline.resize.scale train_pipeline.randomresize.scale: data.min_sizes=[640] \
| data.image_size
prefetch_batches cache cache_dataset cache_ram persistent_workers prefetch prefetch_factor \
pin_memory: images are read ahead by data.num_workers; leave it out
drop_last rect aspect_ratio_group_factor: every image is read in each epoch, in shapes that fit \
it; leave it out
subset fraction limit_train_batches limit_val_batches limit_test_batches: trainer.overfit_batches=2
max_time time: trainer.max_duration counts epochs, steps or images; to stop after 2 hours with a \
checkpoint, write timeout 2h before the command
min_epochs min_steps: trainer.max_duration says how long; leave it out
num_sanity_val_steps enable_checkpointing enable_progress_bar enable_model_summary barebones v \
verbose benchmark inference_mode use_distributed_sampler exist_ok overwrite_output_dir overwrite \
find_unused_parameters do_train do_eval push_to_hub: leave it out
save_weights_only val save_best save_best_only save_last load_best_model_at_end: best.pt and \
last.pt are kept, and the end is validated; leave it out
sync_batchnorm sync_bn: model.norm=sync_bn
detect_anomaly terminate_on_nan: see trainer.max_nonfinite_steps
profiler: trainer.profile=3steps
logging_strategy verbosity print_freq log_freq log_steps logging_steps log_interval log_period \
print_every: trainer.log_every=10
cosine cos_lr: schedule=cosine
lrf min_lr eta_min lr_min: schedule.final_factor=0.01
t_max total_steps: the schedule ends with trainer.max_duration; leave it out
solver.steps: write schedule=multistep schedule.milestones=[60ksteps]
lr_steps steps_lr lr_step_size step_size: write schedule=multistep schedule.milestones=[8epochs]
lr_gamma lr_decay lr_decay_rate: schedule.gamma | schedule=multistep has schedule.gamma
warmup_lr warmup_start_lr warmup_init_lr warmup_bias_lr warmup_decay lr_warmup_decay: \
schedule.warmup_factor
linear_scaling lr_scaling auto_scale_lr auto_scale_lr.enable scale_lr reference_world_size: \
optimizer.lr_rule=linear
lr_mult backbone_lr lr_backbone backbone_lr_mult: optimizer.backbone_lr_scale=0.1
l2 regularizer wd decay: optimizer.weight_decay
opt optimizer_name optimizer_type: optimizer
accumulation_steps grad_accum_steps nbs gradient_accumulation_steps accumulation accumulate_steps \
grad_accum: trainer.accumulate
max_grad_norm clip_grad_norm grad_clip clip_gradients clipnorm: trainer.gradient_clip=1
batch_size_per_gpu total_batch_size global_batch_size effective_batch_size base_batch_size \
per_device_train_batch_size samples_per_gpu train_batch_size: data.batch_size
workers_per_gpu dataloader_num_workers: data.num_workers
save_steps save_every save_freq save_interval checkpoint_interval ckpt_interval: \
trainer.checkpoint_every=1epoch
keep_checkpoint_max save_total_limit max_keep_ckpts: trainer.keep_last
eval_steps eval_every eval_freq val_freq eval_interval evaluation_interval val_every validate: \
trainer.validate_every=1epoch
best_metric metric_for_best_model save_best_metric: trainer.monitor
greater_is_better mode: trainer.monitor_mode=max
early_stopping_patience es_patience: trainer.patience
fp32 no_amp disable_amp: trainer.precision=fp32 | precision=fp32
bf16 half_precision: trainer.precision=bf16 | precision=bf16
gradient_checkpointing grad_checkpointing: model.activation_checkpointing=true
use_deterministic_algorithms cudnn_deterministic: trainer.deterministic=true
strategies backend backends dist_backend launcher distributed ddp: launchers | strategy=ddp
local_world_size main_process_ip machine_rank dist_url master_addr master_port node_rank \
rank gpu_ids: give it to the launcher, as in torchrun --nproc-per-node N
local_rank: torch.distributed.launch gives it; start by torchrun --nproc-per-node N -m \
retina_dist.train in its place
tensorboard_dir log_dir: output_dir
mlflow_tracking_uri tracking_uri: logging.mlflow_uri
trainable_backbone_layers unfreeze: model.trainable_layers
weights_backbone pretrained_backbone backbone_pretrained: model.backbone_weights
fpn fpn_out_channels out_channels: model.fpn_channels
focal: model.focal_gamma
alpha: model.focal_alpha
max_dets: max_detections | detections_per_image | model.detections_per_image
max_det max_detections detections: detections_per_image | model.detections_per_image
top_k topk: see detections_per_image for a detector; every class of a classifier is written
nmsthre iou nms iou_threshold iou_thres iou_thresh nms_thr nms_thresh nms_thresh_test nms_iou: \
nms_threshold | model.nms_threshold
pr_curve ap50 bootstrap ci area per_class confusion_matrix iou_type iou_types: metrics are \
COCO's, at IoU 0.50 to 0.95, with tables of areas and classes; leave it out
score test_conf score_thresh score_thresh_test conf_thres min_score: score_threshold | \
model.score_threshold
dropout drop_path drop_rate: the network has none; leave it out
single_cls: the data names its classes; leave it out
agnostic_nms: NMS is of each class; leave it out
save_txt save_conf save_crop save_json save_frames show_labels show_conf show_boxes line_width \
hide_labels view_img nosave vid_stride stream: pictures and results.json are written to \
output_dir; leave it out
show visualize: pictures are written to output_dir; leave it out
input_dir images_dir image_dir img_dir files: input | images | data.root | root
output_file out outfile: output | output_dir
out_dir output_path output_folder outdir result_dir save_path show_dir: output_dir | output
model_path checkpoint_path weight ckpt: checkpoint | model.weights
anno_path ann_file annotation_file annotation ann gt label_dir: annotations | data.train_annotations
labels: annotations | data.train_annotations | pictures have them; leave it out
predictions preds detections_file dt pred: results
valid_pct val_pct test_ratio holdout random_split test_split valid_split val_ratio \
validation_split val_size: data.val_fraction=0.1
opset_version dynamic_batch calibration metadata fuse sample onnx int8 quantize optimize keras \
workspace dynamic_axes: leave it out
from to from_format to_format input_format output_format: root and output say what is read and \
written; the ending of output is the format, and convert writes COCO json alone, which other \
tools, such as Datumaro, convert further
bind address listen: host
ssl https tls: put a proxy with TLS before it; leave it out
reload: leave it out
token password auth key: api_key
tol tolerance atol rtol: box_tolerance | the bounds are fixed; leave it out
fix_errors fix repair: problems are named, files stay as they are; leave it out
num_shards shards shard_size maxsize max_size_mb: shard_mb
test_only: python -m retina_dist.evaluate judges a checkpoint; leave it out
use_copypaste crop crop_type rotate90 random_crop gaussian_blur sharpness grayscale \
input.crop.enabled: see data.hflip, data.photometric and data.scale_jitter for detection, \
data.augment, data.mixup and data.cutmix for classification
mixup: data.mixup | detection has none; leave it out
cutmix: data.cutmix | detection has none; leave it out
ra_magnitude augmix_severity ra_reps ra_sampler aa: data.augment=randaugment | see data.photometric
remode reprob: data.erasing=0.25 | see data.photometric
model_ema_steps ema_decay: trainer.ema_decay=0.9998
interpolation bilinear antialias: images are resized as torchvision does; leave it out
val_resize_size: data.val_resize | data.val_min_size=800
val_crop_size: data.val_image_size | data.val_min_size=800
min_size_test test_size eval_size: data.val_min_size=800 | data.val_image_size=224 | leave it out
train_crop_size input_size: data.min_sizes=[640] | data.image_size | size=[640,640] | the size of \
the training is used; leave it out
crop_pct: data.val_resize=256 | images are resized whole; leave it out
initial_epoch start_epoch last_epoch: resume | leave it out
rpn_score_thresh pred_score_thr: score_threshold | model.score_threshold
gamma: schedule.gamma | write schedule=multistep schedule.gamma=0.1
steps_per_epoch: an epoch has all images; leave it out
milestones: schedule.milestones | write schedule=multistep schedule.milestones=[8epochs]
lr_drop decay_epochs lr_milestones: write schedule=multistep schedule.milestones=[8epochs]
decay_rate: write schedule=multistep schedule.gamma=0.1
cooldown_epochs: the schedule ends with trainer.max_duration; leave it out
warmup_factor: schedule.warmup_factor
momentum: optimizer.momentum | write optimizer=sgd optimizer.momentum=0.9
nesterov: optimizer.nesterov | write optimizer=sgd optimizer.nesterov=true
betas: optimizer.betas | write optimizer=adamw "optimizer.betas=[0.9,0.999]"
eps epsilon adam_epsilon: optimizer.eps | write optimizer=adamw optimizer.eps=1e-8
opt_betas adam_beta1 adam_beta2 beta1 beta2: optimizer.betas | write optimizer=adamw \
"optimizer.betas=[0.9,0.999]"
warmup_momentum layer_decay foreach fused amsgrad: the optimizers have none; leave it out
weight_decay_norm: optimizer.norm_weight_decay
weight_decay_bias: optimizer.bias_weight_decay
balance oversample sampler_train sampler: data.repeat_threshold=0.001 | data.balanced=true
class_weight pos_weight cls_weights cls_pw: data.class_weights=auto
data.test data.test_annotations data.test_images: evaluate judges on it, as python -m \
retina_dist.evaluate checkpoint=RUN annotations=FILE images=FOLDER
data.split: train is trained on and val judged; leave it out
data.train data.val data.valid data.validation: give data.root=FOLDER, whose splits are found, or \
data.train_annotations=FILE data.train_images=FOLDER, and so for val
test val_set valid validation: data.val_split | leave it out
iou_thresholds pos_iou_thr fg_iou_thresh foreground_iou_thresh: model.foreground_iou | metrics \
are COCO's; leave it out
neg_iou_thr bg_iou_thresh min_pos_iou: model.background_iou
focal_loss_gamma fl_gamma gamma_focal: model.focal_gamma
focal_loss_alpha: model.focal_alpha
smooth_l1_loss_beta: model.smooth_l1_beta
bbox_reg_loss_type bbox_loss loss_bbox reg_loss iou_loss: model.box_loss
box cls dfl pose kobj reg_max loss_weight prior_prob target_means target_stds bbox_reg_weights \
use_sigmoid allow_low_quality_matches add_gt_as_proposals positive_fraction: it is as in \
torchvision; leave it out
topk_candidates_test pre_nms_topk nms_pre: model.topk_candidates
num_convs stacked_convs: model.head_convs
start_level num_outs num_levels out_features: the pyramid has P3 to P7; leave it out
depth layers: model.backbone=resnet50 | model.architecture=resnet50
freeze_at freeze_layers freeze_bn: see model.trainable_layers and model.norm
sizes scales octave_base_scale scales_per_octave anchor_size: see model.anchor_sizes
clip_max_norm max_norm: trainer.gradient_clip=1
filter_empty_annotations filter_empty_gt remove_empty: see data.keep_empty_images
solver.amp.enabled: trainer.precision=bf16
solver.clip_gradients.enabled: trainer.gradient_clip=1
ratios anchor_ratios: model.aspect_ratios
strides: they are 8 to 128 px; leave it out
meta_architecture: the network is a RetinaNet; leave it out
type: write optimizer=NAME, schedule=NAME, strategy=NAME or model=NAME
model: checkpoint | model.backbone
pretrained_weights pretrained_path pretrained_model init_checkpoint initial_checkpoint init_cfg \
init_weights: model.weights
width num_queries: the network has none; leave it out
tta test_time_augmentation flip_test test.aug.enabled: images are detected once; leave it out
label_smoothing label_smoothing_factor smoothing: model.label_smoothing=0.1 | detection has none; \
leave it out
cudnn_benchmark vis_period visualizer test_evaluator custom_imports overlap_mask dnn evaluator \
retina_masks embed class_map group_by_length remove_unused_columns hub_model_id \
neftune_noise_alpha eval_accumulation_steps save_safetensors dataloader_drop_last plugins \
reload_dataloaders_every_n_epochs ddp_find_unused_parameters task_type classwise eval_options \
cfg_options area_rng format_only proportion prefix limit timeout_s log_level: leave it out
val_batch per_device_eval_batch_size eval_batch_size test_batch_size: batch_size | \
data.val_batch_size
eval_strategy evaluation_strategy: trainer.validate_every=1epoch
save_strategy: trainer.checkpoint_every=1epoch
logging_dir: output_dir
lr_scheduler_type sched lr_schedule lr_policy policy: schedule
lr_scheduler_kwargs param_scheduler: see schedule=cosine --help
amp_dtype dtype tf32: trainer.precision=bf16 | precision=bf16
compile_mode jit_compile dynamo_backend torch_compile: trainer.compile=true
auto_find_batch_size auto_scale_batch_size: give data.batch_size, and trainer.accumulate=auto to \
fit it into the memory
find_lr auto_lr_find lr_finder: try several with --multirun optimizer.lr=1e-4,1e-3
zero_stage offload_optimizer deepspeed fsdp dp tpu: there are strategy=single, ddp and horovod; \
leave it out
callbacks callback custom_hooks hooks: from Python, rd.Trainer takes callbacks=[...]
queue partition account gpus_per_node mem_per_cpu: docs/clusters.md shows how a cluster starts it
num_samples max_images: data.synthetic.num_images | num_images | leave it out
interval: see trainer.checkpoint_every, trainer.validate_every and trainer.log_every
enable: leave it out
annotated thickness draw font_size line_thickness agnostic palette font return_outputs retina: \
pictures are written to output_dir; leave it out
overlap slice_overlap overlap_ratio: tile_overlap
slice slice_height slice_width slice_size tile_size tiles sahi: tile=640
include framework: output=model.onnx
input_shape shape img_shape: canvases=[[640,640]] | size=[640,640]
batch batch_size: batch_sizes=[16] | batch_size | data.batch_size | max_batch | images are taken \
as they come; leave it out
device accelerator cuda use_cuda no_cuda use_gpu: device | strategy.device | it is exported on \
the CPU; leave it out
fp16 precision: trainer.precision | precision | it is exported in fp32; leave it out
name run_name experiment_name: output_dir | leave it out
output_dir: output | leave it out
resume: checkpoint | leave it out
task plots tracker box_format gpu_count: leave it out
random_erase random_erasing erasing: data.erasing | detection has none; leave it out
nms=true nms=false end2end embed_nms with_nms: NMS is part of the detector; leave it out
output_names input_names do_constant_folding quantization trt fp16_export optimize_for_mobile \
strip: leave it out
file: output | input | data.root
video camera images img: input | images | root | data.root
dataloaders: root | data.root
metric metrics: trainer.monitor | it is computed with the others; leave it out
host_name ip hostname server_name: host
port_number server_port: port
max_batch_size: max_batch
timeout request_timeout: shutdown_s | strategy.timeout_s
ssl_keyfile ssl_certfile cors root_path share: put a proxy before it; leave it out
num_threads threads: trainer.num_threads | set OMP_NUM_THREADS; leave it out
debug_mode: debug=true
device=0 gpu=0 gpu=1 device_ids gpu_id: device=cuda:0 | strategy.device=cuda:0
nproc_per_node nproc_per_host nnodes np standalone rdzv_backend rdzv_endpoint hostfile: processes \
| give it to the launcher, before -m, as in torchrun --nproc-per-node N -m retina_dist.train
concurrency max_workers: max_queue | data.num_workers
folder: input | images | data.root | root | run
results: run | results
run_dir: run | output_dir
second bad run_b: b | other
first good run_a: a | run
runs: run | write a=RUN b=RUN
other other_run baseline compare compare_to: other | b
title open theme: leave it out
source src in: input | root | leave it out
target: output | leave it out
dst dest destination to_coco: output
classes_file: classes
copy_images indent yaml json category_ids: leave it out
check check_images: images=decode | leave it out
strict: a finding of level error makes the exit code 1; leave it out
report: output=report.json
maxcount samples_per_shard pattern: shard_mb
rd.retina_dist.model rd.retina_dist.retinanet rd.retina_dist.yolo rd.retina_dist.load_model \
rd.retina_dist.load rd.retina_dist.load_checkpoint rd.retina_dist.from_checkpoint \
rd.retina_dist.load_from_checkpoint rd.retina_dist.build_model rd.retina_dist.create_model \
rd.retina_dist.get_model rd.retina_dist.predictor rd.retina_dist.predict \
rd.retina_dist.evaluate: call \
rd.build_retinanet(num_classes=N), or rd.Detector.from_checkpoint(RUN) for a trained one
rd.retina_dist.earlystopping rd.retina_dist.earlystop: give rd.Trainer patience=3, and perhaps \
monitor="coco/AP"
rd.retina_dist.modelcheckpoint rd.retina_dist.checkpoint: best.pt and last.pt are kept; see \
rd.Trainer(monitor=…, checkpoint_every="1epoch", keep_last=2)
rd.retina_dist.learningratemonitor rd.retina_dist.lrmonitor rd.retina_dist.tqdmprogressbar: it is \
logged; leave it out
rd.retina_dist.tensorboardlogger rd.retina_dist.mlflowlogger rd.retina_dist.csvlogger: give \
rd.Trainer logging=rd.LoggingConfig(tensorboard=True, mlflow=True)
rd.retina_dist.wandblogger: docs/extending.md has a logger for Weights & Biases
rd.retina_dist.trainingarguments rd.retina_dist.config rd.retina_dist.trainerconfig: give \
rd.Trainer(data=…, optimizer=…, max_duration="12epochs") each setting by its name
rd.retina_dist.datamodule rd.retina_dist.lightningdatamodule rd.retina_dist.data: write \
rd.DetectionData(root=FOLDER), or rd.TorchDatasetConfig(…) for your own Dataset
rd.retina_dist.lightningmodule rd.retina_dist.module rd.retina_dist.detectionmodel: \
docs/extending.md shows a model of your own
rd.retina_dist.adam rd.retina_dist.adamw rd.retina_dist.sgd: write \
rd.OptimizerConfig(name="adamw", lr=1e-4)
rd.retina_dist.classifier rd.retina_dist.classify rd.retina_dist.imageclassifier: call \
rd.TrainedClassifier.from_checkpoint(RUN), or train one with rd.ClassifierTrainer(…).fit()
rd.retina_dist.collate_fn: batches are made by rd.Trainer; leave it out
rd.retina_dist.compare: use retina-dist compare RUN RUN
rd.retina_dist.train rd.retina_dist.fit: call rd.Trainer(data=…, optimizer=…, max_duration=…).fit()
rd.retina_dist.dataset rd.retina_dist.dataconfig rd.retina_dist.cocodataset \
rd.retina_dist.dataloader: write rd.DetectionData(root=FOLDER), or rd.TorchDatasetConfig(…) for \
your own Dataset
torchdatasetconfig.class_names torchdatasetconfig.names torchdatasetconfig.classes \
torchdatasetconfig.labels: did you mean categories? It has a name for each label
torchdatasetconfig.dataset torchdatasetconfig.train_dataset torchdatasetconfig.train_data \
torchdatasetconfig.val_dataset torchdatasetconfig.train_ds torchdatasetconfig.valid \
torchdatasetconfig.validation torchdatasetconfig.eval torchdatasetconfig.valid_dataset \
torchdatasetconfig.eval_dataset torchdatasetconfig.val_data torchdatasetconfig.val_ds \
torchdatasetconfig.datasets: give your Datasets as train and val
torchdatasetconfig.transform torchdatasetconfig.transforms torchdatasetconfig.augmentation \
detectiondata.transform detectiondata.transforms detectiondata.augmentation: give the Trainer \
augmentation=FUNCTION, or see hflip, photometric and scale_jitter here
classificationdata.train classificationdata.val classificationdata.dataset \
classificationdata.train_dataset: a classifier is trained on folders; give root=FOLDER with \
train/CLASS/*.jpg and val/CLASS/*.jpg
modelconfig.pretrained modelconfig.coco_pretrained: write \
weights="RetinaNet_ResNet50_FPN_Weights.COCO_V1"
modelconfig.pretrained_backbone: write backbone_weights="DEFAULT"
classifierconfig.pretrained: write weights="ResNet50_Weights.IMAGENET1K_V2"
classifierconfig.name classifierconfig.backbone classifierconfig.arch: write architecture="resnet50"
optimizerconfig.type optimizerconfig.optimizer optimizerconfig.optim optimizerconfig.opt \
optimizerconfig.optimizer_name optimizerconfig.cls optimizerconfig.class_path: write name="adamw"
scheduleconfig.type scheduleconfig.scheduler scheduleconfig.lr_scheduler scheduleconfig.policy: \
write name="cosine"
strategyconfig.backend strategyconfig.type strategyconfig.strategy: write name="ddp"
loggingconfig.wandb loggingconfig.project loggingconfig.wandb_project loggingconfig.entity: \
docs/extending.md has a logger for Weights & Biases; leave it out
loggingconfig.log_dir loggingconfig.save_dir: give rd.Trainer output_dir="runs/mine"
load_annotations.missing load_annotations.root load_annotations.path load_annotations.folder: \
write load_annotations(annotations="val.json", images="FOLDER")
load_config.experiment load_config.data load_config.root load_config.data_root \
load_config.overrides load_config.config load_config.positional load_config.config_name: write \
load_config("train", ["experiment=small", "data.root=FOLDER"])
build_retinanet.positional build_retinanet.model build_retinanet.config build_retinanet.settings: \
write build_retinanet(num_classes=2, backbone="resnet50"), with the settings of a ModelConfig
build_retinanet.classes build_retinanet.categories build_retinanet.names: write num_classes=2
torchdatasetconfig.collate_fn detectiondata.collate_fn torchdatasetconfig.sampler: batches are \
made here; leave it out
trainer.callback: write callbacks=[MyCallback()]
trainer.config trainer.cfg trainer.missing trainer.positional classifiertrainer.config \
classifiertrainer.missing classifiertrainer.positional: write Trainer(data=…, optimizer=…, \
max_duration="12epochs"), or Trainer.from_config(config) for the settings of load_config
trainer.args trainer.hparams trainer.training_args: give each setting by its name, as in \
Trainer(data=…, optimizer=…, max_duration="12epochs", output_dir="runs/mine")
trainer.compute_metrics trainer.metrics: COCO metrics are computed, and fit() returns them; leave \
it out
trainer.processing_class trainer.tokenizer trainer.image_processor: images are resized and \
normalised here; leave it out
trainer.train_dataset trainer.eval_dataset trainer.train_dataloader trainer.train_dataloaders \
trainer.val_dataloaders trainer.datamodule trainer.dataset trainer.val_dataset trainer.train_data \
trainer.val_data trainer.dataloaders trainer.train_loader trainer.val_loader: give the trainer \
data=rd.TorchDatasetConfig(train=…, val=…, categories=[…]) for your own Datasets
fit.positional fit.train_dataloaders fit.train_dataloader fit.val_dataloaders fit.datamodule \
fit.model fit.data fit.train_dataset fit.train_data fit.train_loader fit.val_loader: write fit() \
alone, and give the trainer model=rd.ModelConfig(…) and data=rd.DetectionData(root=FOLDER), or \
data=rd.TorchDatasetConfig(train=…, val=…, categories=[…]) for your own Datasets
rd.cocoresult.map rd.cocoresult.ap rd.cocoresult.map50 rd.cocoresult.ap50 rd.cocoresult.box \
rd.cocoresult.results_dict rd.cocoresult.maps rd.cocoresult.metrics rd.cocoresult.items \
rd.cocoresult.keys rd.cocoresult.values rd.cocoresult.compute rd.cocoresult.summarize \
rd.cocoresult.map_50 rd.cocoresult.print_summary rd.cocoresult.summary rd.cocoresult.print \
rd.cocoresult.map75 rd.cocoresult.mean_results: read stats["AP"], \
stats["AP50"] or per_class["cat"]
rd.classificationresult.accuracy rd.classificationresult.top1 rd.classificationresult.acc \
rd.classificationresult.stats rd.classificationresult.confusion_matrix: read \
metrics["val/top1"], per_class or confusion
rd.trainer.best_model_path rd.trainer.checkpoint_path rd.trainer.best rd.trainer.ckpt_path \
rd.trainer.checkpoint_callback rd.trainer.best_model rd.trainer.best_checkpoint \
rd.trainer.checkpoints rd.trainer.best_model_checkpoint: read checkpoint after fit()
rd.trainer.log_dir rd.trainer.save_dir rd.trainer.default_root_dir rd.trainer.logdir: read \
run_folder after fit()
rd.trainer.evaluation_loop rd.trainer.fit_loop rd.trainer.train_dataloader \
rd.trainer.current_epoch rd.trainer.global_step rd.trainer.should_stop: a callback of \
rd.Callback hears of each step, as docs/python.md shows
rd.trainer.classifier: a detector is trained; call detector()
rd.classifiertrainer.detector: a classifier is trained; call classifier() after fit()
rd.trainer.add_callback: give the trainer callbacks=[MyCallback()]
rd.trainer.optimizers rd.trainer.lr_scheduler rd.trainer.strategy_name rd.trainer.epochs: read \
config, which has all settings
rd.trainer.callback_metrics rd.trainer.logged_metrics rd.trainer.metrics rd.trainer.history \
rd.trainer.state: fit() returns the metrics
rd.trainer.export rd.detector.onnx: use python -m retina_dist.export checkpoint=RUN output=FILE
rd.trainer.resume_from_checkpoint: give the trainer resume=RUN
rd.detector.show rd.detector.plot rd.detector.visualize rd.detector.draw: use python -m \
retina_dist.predict checkpoint=RUN input=FOLDER, which draws pictures
rd.detector.half rd.detector.bfloat16 rd.trainedclassifier.half: give \
from_checkpoint(PATH, precision="fp16")
rd.detector.track rd.detector.stream rd.detector.predict_batch: call predict(PATHS)
rd.detector.state_dict rd.detector.parameters rd.detector.load_state_dict rd.detector.modules: use \
model, the network
from_checkpoint.map_location from_checkpoint.cuda from_checkpoint.gpu: give device="cuda"
from_checkpoint.num_classes from_checkpoint.classes from_checkpoint.class_names \
from_checkpoint.backbone: the checkpoint says it; leave it out
from_checkpoint.half from_checkpoint.fp16 from_checkpoint.dtype: give precision="fp16"
set_limits.conf set_limits.threshold set_limits.confidence set_limits.score_thresh \
set_limits.score_thr set_limits.min_score: write score_threshold=0.3
set_limits.iou set_limits.nms set_limits.nms_thresh set_limits.iou_threshold: write \
nms_threshold=0.5
set_limits.max_det set_limits.topk set_limits.detections_per_img set_limits.max_detections: \
write detections_per_image=100
rd.trainer.train rd.trainer.run rd.trainer.start rd.classifiertrainer.train \
rd.classifiertrainer.fit_one_cycle rd.classifiertrainer.fine_tune rd.trainer.fit_one_cycle \
rd.trainer.fine_tune: call fit()
rd.trainer.test rd.trainer.validate rd.trainer.val rd.classifiertrainer.test \
rd.classifiertrainer.validate rd.classifiertrainer.val: call evaluate() after fit()
rd.trainer.predict: call detector().predict(PATHS) after fit()
rd.classifiertrainer.predict: call classifier().predict(PATHS) after fit()
rd.classifiertrainer.best_model_path rd.classifiertrainer.checkpoint_path: read checkpoint after \
fit()
rd.trainer.save rd.trainer.save_checkpoint: its checkpoints are in run_folder after fit()
rd.trainer.network rd.trainer.net: call detector().model after fit()
rd.detector.load_from_checkpoint rd.detector.from_pretrained rd.detector.load \
rd.detector.load_checkpoint rd.detector.restore rd.detector.from_run \
rd.detector.from_file rd.detector.from_weights rd.trainedclassifier.load_from_checkpoint \
rd.trainedclassifier.from_pretrained rd.trainedclassifier.load: call from_checkpoint(RUN)
rd.trainer.load_from_checkpoint rd.trainer.from_checkpoint rd.trainer.from_pretrained \
rd.trainer.load rd.trainer.load_checkpoint: give the trainer resume=RUN, or call \
rd.Detector.from_checkpoint(RUN)
rd.trainedclassifier.export rd.trainedclassifier.save: use python -m retina_dist.export \
checkpoint=RUN output=FILE
rd.trainedclassifier.classify rd.trainedclassifier.infer rd.trainedclassifier.forward \
rd.trainedclassifier.predict_proba rd.trainedclassifier.get_preds: call predict(PATHS), which \
gives the probability of each class
rd.trainedclassifier.val rd.trainedclassifier.test rd.trainedclassifier.validate \
rd.trainedclassifier.score: call evaluate(rd.ClassificationData(root=FOLDER))
rd.trainedclassifier.train rd.trainedclassifier.fit: train with rd.ClassifierTrainer(…).fit()
rd.trainedclassifier.state_dict rd.trainedclassifier.parameters \
rd.trainedclassifier.load_state_dict: use model, the network
rd.detector.to rd.detector.cuda rd.detector.cpu rd.trainedclassifier.to rd.trainedclassifier.cuda: \
give from_checkpoint(PATH, device="cuda")
rd.detector.detect rd.detector.infer rd.detector.forward rd.detector.inference: call predict(PATHS)
rd.detector.train rd.detector.fit: train with rd.Trainer(…).fit()
rd.detector.names rd.detector.classes rd.detector.class_names: read categories.names
rd.trainedclassifier.class_to_idx rd.trainedclassifier.idx_to_class rd.trainedclassifier.names \
rd.trainedclassifier.categories rd.trainedclassifier.labels rd.trainedclassifier.vocab: read \
classes, in the order of the probabilities
rd.detector.class_to_idx rd.detector.id2label rd.detector.labels: read categories.names
rd.detector.val rd.detector.test: call evaluate(rd.DetectionData(root=FOLDER))
rd.detector.export rd.detector.save: use python -m retina_dist.export checkpoint=RUN output=FILE
rd.categories.0 rd.categories.1 rd.categories.labels rd.categories.name rd.categories.classes \
rd.categories.class_names: read names[LABEL]
rd.detector.eval rd.trainedclassifier.eval: it is as in eval(); leave it out
from_checkpoint.score_threshold from_checkpoint.conf from_checkpoint.nms_threshold: call \
set_limits(score_threshold=0.3) after
rd.detector.conf rd.detector.score_threshold: call set_limits(score_threshold=0.3)
predict.conf predict.confidence predict.threshold predict.score_threshold predict.iou \
predict.positional predict.max_det predict.score_thresh predict.conf_thres predict.nms_threshold \
predict.iou_thres: call set_limits(score_threshold=0.3) of the \
detector before
predict.topk predict.top_k predict.k: a classifier has predict(IMAGES).topk(2), a detector \
set_limits(detections_per_image=2)
predict.imgsz predict.size predict.img_size predict.image_size predict.min_size: images are \
resized as in the training; leave it out
predict.source predict.img predict.image predict.x predict.input predict.inputs predict.path \
predict.paths: its first argument is a path, an image or a list of them
predict.batch_size predict.batch predict.device predict.save predict.verbose: images are taken \
one by one on the device of from_checkpoint(PATH, device=…)
fit.epochs fit.max_epochs fit.num_epochs: give it to the trainer, as max_duration="3epochs"
fit.ckpt_path fit.resume fit.checkpoint: give the trainer resume=RUN
evaluate.predictions evaluate.targets evaluate.split evaluate.loader \
evaluate.dataloader: it predicts by itself; give it one DetectionData(root=FOLDER), or \
TorchDatasetConfig(train=…, val=…, categories=[…]) of your own Datasets
evaluate.root evaluate.annotations evaluate.data evaluate.missing: give evaluate \
DetectionData(root=FOLDER), of a classifier ClassificationData(root=FOLDER)
from_checkpoint.checkpoint from_checkpoint.weights from_checkpoint.checkpoint_path \
from_checkpoint.ckpt from_checkpoint.run: its first argument is the path
dataset_file dataset_name dataset_type: data.format | the format is recognised; leave it out
norm_type: model.norm
clip_mode: trainer.gradient_clip_algorithm
use_v2: model.variant=v2
use_cpu: device=cpu | strategy.device=cpu
eos_coef aux_loss dilation position_embedding: the network has none; leave it out
mask_on mask_ratio masks: boxes alone are learnt; leave it out
rescale: images are normalised as for the weights of ImageNet; leave it out
occupy lr_noise split_bn class_mode steps_per_execution gradient_as_bucket_view broadcast_buffers \
static_graph downcast_bf16 test_mode blur beta verify merge html category_offset keep_empty: \
leave it out
class_path: name a class by _target_ in an entry, as docs/extending.md shows
wandb.project wandb_project wandb_entity wandb.entity log_model tags notes group save_code: \
docs/extending.md has a logger for Weights & Biases; leave it out
model.bbox_head.loss_cls.gamma bbox_head.loss_cls.gamma loss_cls.gamma: model.focal_gamma
model.bbox_head.loss_cls.alpha bbox_head.loss_cls.alpha loss_cls.alpha: model.focal_alpha
data.val.ann_file val_evaluator.ann_file val_dataloader.dataset.ann_file evaldataset.anno_path: \
data.val_annotations
data.train.img_prefix train_dataloader.dataset.data_prefix.img: data.train_images
data.val.img_prefix val_dataloader.dataset.data_prefix.img: data.val_images
data.root: root | overrides=[data.root=/data/mine]
max_boxes min_area min_box_size: every box with an area in its image counts; leave it out
class_filter exclude ignore_classes include_classes only_classes remap data.class_map label_map \
class_mapping merge_classes: every class is taken; \
leave it out, or change the annotations
k_folds n_folds fold folds: data.train_annotations=FOLD.json | write the files of each fold into a \
folder, and give data.root=FOLDER
resize: data.min_sizes=[640] | data.image_size
pad letterbox: images are padded to the canvas of their bucket; leave it out
img_ext extension ext recursive: every image below the folder is read; leave it out
csv save_images: pictures and results.json are written to output_dir; leave it out
ensemble: give one checkpoint
class_agnostic: NMS and metrics are of each class; leave it out
engine min_shape max_shape torchscript: output=model.onnx
max_batch_delay max_wait: wait_ms
route endpoint api url path=/predict: requests go to /score, at host and port; leave it out
fast: images=header
thumbnails samples: sheets=FOLDER
leak duplicates: images in both splits are named; leave it out
val_fraction: data.val_fraction | split says what is written; leave it out
format=pdf format=html: the report is HTML, which a browser prints as PDF; leave it out
dir logdir: run | output_dir | output
precision=fp64 precision=float64 dtype=float64: leave it out, or compare in float64 with python -m \
retina_dist.parity
repeat num_repeats: rounds
path=fp32 path=bf16 path=fp16: paths=[fp32]
num_windows n: windows
save: best.pt and last.pt are kept, predictions are written to output_dir; leave it out
check=true: it is checked; leave it out
neck: the network has a feature pyramid; leave it out
auto_resume resume_training restart: resume=auto | checkpoint
finetune_from: model.weights
from_scratch: model.weights=null
train_split: it is read from the data; see data.val_split and data.val_fraction
stratify: a hash of its name decides where an image goes; leave it out
warmup_proportion: schedule.warmup=1epoch
clipvalue: write trainer.gradient_clip=1 trainer.gradient_clip_algorithm=value
micro_batch_size: trainer.accumulate
allow_tf32 matmul_precision: trainer.precision=tf32 | precision=tf32
rho: the optimizers have none; leave it out
nccl_timeout: strategy.timeout_s
find_unused sanity_check comment exif: leave it out
plan: dry_run=true
result: output_dir | output
zip webhook rate_limit docs ui log relative pdf: leave it out
max_size: shard_mb | data.max_size | max_body_mb | leave it out
ranks: processes | the launcher starts the processes: torchrun --nproc-per-node N
cpu: device=cpu | strategy.device=cpu
horovod: launchers=[horovodrun] | strategy=horovod
run_folder: run | checkpoint | a | resume
path: data.root | root | input | checkpoint
"""


_ALIASES: dict[str, list[str]] = {}  # the keys that may be meant, by each name of the table
for _names, _meant in rows_of(_TABLE).items():
    _ALIASES |= dict.fromkeys(_names.split(), _meant.split(" | "))


def alias(end: str, known: Collection[str], value: object = None) -> str:
    """The key of `known` that other tools call `end`, or much like it, perhaps with a value, or a
    clause, or "".

    A whole number as `value` takes the place of the example's. A name with its value, such as
    amp=false, comes first.
    """
    word = end.lower().replace("-", "_")
    with_value = f"{word}={value}".lower()
    if with_value in _ALIASES:
        word = with_value
    if word not in _ALIASES and "." not in word:
        word = "".join(get_close_matches(word, _ALIASES, 1, 0.9))
    for meant in _ALIASES.get(word, []):
        is_clause = " " in meant
        if is_clause or meant.partition("=")[0] in known:
            if not re.fullmatch(r"\d{1,9}", str(value)):
                return meant
            return re.sub(r"(?<=[=\[,])\d+k?(?![\d.]|e-)", str(value), meant)
    return ""


def unknown_key(
    command: str,
    key: str,
    known: Collection[str],
    value: object = None,
    others: Sequence[str] = (),
) -> str:
    """Message for an unknown key of `python -m retina_dist.COMMAND`, with the closest known one.

    First what other tools call it, then one of its section by spelling, its name in another
    section, and a similar spelling. `others` are the commands that have the key.
    """
    if key.endswith("_target_"):
        return (
            f"{key} is not a setting; name a class in an entry of the groups task, data or model."
        )

    if key.startswith(("experiment.", "global.", "_global.", "package.")):
        return f"{key} is not a setting; the experiment's first line must be # @package _global_."
    near = [key.lower()]
    if near[0] not in known:
        near = nearest(key, known, value)
    hint = f"leave it out, or see the keys with {command} --help."
    if key.isupper() and "_" in key and "." not in key:  # a variable of the environment
        hint = f"write it before the command: {key}={value} {command}."
    if len(others) > 4:  # of every training: name train, the last, alone
        others = others[-1:]
    if others:
        hint = f"it is one of {' and '.join(others)}: leave it out."
    if near:
        hint = f"did you mean {' or '.join(near)}?"
        if " " in near[0]:
            hint = f"{near[0]}."
    return f"{key} is not a setting; {hint}"


def nearest(key: str, known: Collection[str], value: object) -> list[str]:
    """The known keys that `key` may mean, or a clause that tells."""
    key = key.lower()  # as Detectron2's are in capitals
    section, _, end = key.rpartition(".")
    meant = alias(key, known, value) or alias(end, known, value)
    if meant:
        return [meant]
    of_section = [k for k in known if section and k.rpartition(".")[0] == section]
    near = _spelled_like(end, of_section)
    if near:
        return near
    near = [k for k in known if k.rpartition(".")[2] == end]
    near = near or get_close_matches(key, known, 1, 0.85)
    if near or section in known:
        return near
    return _spelled_like(end, known)


# The classes whose arguments are the settings of a section, in Python.
_CLASSES = {
    "trainer": "Trainer",
    "data": "DetectionData",
    "model": "ModelConfig",
    "optimizer": "OptimizerConfig",
    "schedule": "ScheduleConfig",
    "strategy": "StrategyConfig",
    "logging": "LoggingConfig",
}


class _Sections(tuple[str, ...]):
    """Holds every key of `_CLASSES`' sections."""

    def __contains__(self, key: object) -> bool:
        section, point, _ = str(key).partition(".")
        return bool(point) and section in _CLASSES


def unknown_argument(name: str, schema: type, key: str, value: object = None) -> str:
    """Message for an unknown argument of the settings `schema`, called `name`."""
    own = settings_by_key(schema)
    known: dict[str, str] = {}
    for section in ("", "data.", "model.", "trainer.", "optimizer."):
        known |= {f"{section}{argument}": argument for argument in own}

    hint = f"it has {', '.join(key for key in own if '.' not in key)}."
    meant = alias(f"{name}.{key}", ()) or alias(key, known, value)
    near = _spelled_like(key, own)
    if not meant and not near:
        meant = alias(key, _Sections(), value)
    if " " in meant:
        hint = f"{meant}."
    elif meant:
        setting, _, example = meant.partition("=")
        hint = f"did you mean {_as_argument(known.get(setting, setting), example)}?"
    elif near:
        hint = f"did you mean {_as_argument(near[0])}?"
    return f"{name} has no argument {key}; {hint}"


def _as_argument(setting: str, example: str = "") -> str:
    """How a setting is given in Python; a text is shown with its `example`."""
    section, point, end = setting.rpartition(".")
    if end in _CLASSES:
        return f"{end}=rd.{_CLASSES[end]}(…)"
    argument = end
    if re.match(r"\d+[a-z]", example):
        argument += f'="{example}"'
    elif example.startswith("["):
        argument += f"={example}"
    if not point or section not in _CLASSES:
        return argument
    if argument == end:
        argument += "=…"
    made = f"rd.{_CLASSES[section]}({argument})"
    return made if section == "trainer" else f"{section}={made}"


def _spelled_like(end: str, keys: Iterable[str]) -> list[str]:
    ends: dict[str, str] = {}
    for key in keys:
        ends.setdefault(key.rpartition(".")[2], key)
    return [ends[near] for near in get_close_matches(end, ends, 1, 0.8)]


def no_value(overrides: Sequence[str], number: int, known: Collection[str]) -> str:
    """Message for `overrides[number]`, which is not KEY=VALUE, with a suggestion."""
    word = overrides[number]
    remedy = _remedy_of_word(word, overrides, number, known)
    if remedy:
        return f"{word} is not KEY=VALUE; {remedy}."

    given = {override.partition("=")[0] for override in overrides if "=" in override}
    bare = [each for each in overrides if _is_value(each, known)]
    if "input" in known and ("input" in given or len(bare) > 2):  # the shell's words of a pattern
        return f'{word} is not KEY=VALUE; write "input=photos/*.jpg".'
    written = []
    for each in bare:
        key = _key_of_value(each, known, given, is_one_of_several=len(bare) > 1)
        given.add(key)
        written.append(as_override(key, each))
    hint = " ".join(written)
    if written[-1].startswith(("experiment=", "KEY=")):
        hint += ", or leave it out"
    return f"{word} is not KEY=VALUE; write {hint}."


def _is_value(word: str, known: Collection[str]) -> bool:
    return "=" not in word and (word not in known or os.path.isdir(word))


def _remedy_of_word(
    word: str, overrides: Sequence[str], number: int, known: Collection[str]
) -> str:
    """The remedy for a part of a list, a key or a file; "" for another word."""
    name, _, given = re.sub(r"@|=\[", ":", word.lstrip("~").partition(",")[0]).partition(":")
    before = "".join(overrides[:number][-1:])
    around = [before, *overrides[number + 1 : number + 2]]
    is_apart = any(re.search(",$|=$|^=", other) for other in around)
    if is_apart or unclosed(before):
        return "leave out the spaces around = and between the items of a list"
    key, _, value = before.partition("=")
    if os.path.exists(f"{value} {word}"):
        return f"write {as_override(key, f'{value} {word}')}"
    following = "".join(each for each in overrides[number + 1 : number + 2] if "=" not in each)
    if os.path.isdir(word):  # a value, even where a key is called so
        return ""
    if name in known:
        return f"write {name}={given or following or _example_of(name, known)}"
    return _remedy_of_name(name, known, following, value) or _remedy_of_file(word, known)


def unclosed(text: str) -> int:
    """How many brackets of a text are not closed."""
    return len(re.findall(r"[\[{(]", text)) - len(re.findall(r"[\]})]", text))


def _example_of(name: str, known: Collection[str]) -> str:
    is_switch = isinstance(known, Mapping) and known[name] is bool
    return "true" if is_switch else "VALUE"


def _remedy_of_name(name: str, known: Collection[str], following: str, value: str) -> str:
    """The remedy for what other tools call a key, perhaps with its value as the word after it, as
    Detectron2 takes them; "" for another word.
    """
    key = name.rpartition(".")[2] if name.isupper() else name
    meant = alias(key, known, following or value)
    if " " in meant:
        return meant
    if "=" in meant:
        return f"write {meant}"
    return f"write {meant}={following}" if meant and following else ""


def _remedy_of_file(word: str, known: Collection[str]) -> str:
    """The remedy for a YAML file, or one of annotations; "" for another word."""
    if "data.root" in known and os.path.isfile(word) and word.endswith(OF_DATA):
        return f"write {as_override('data.root', folder_of(word))}"
    stem, _, ending = word.rpartition(".")
    name = os.path.basename(stem)
    if ending in ("yaml", "yml") and "data.root" in known and name != "data":
        return (
            f"put it into FOLDER/experiment and give --config-dir FOLDER experiment={name}, with "
            "# @package _global_ as its first line, or for a run's config.yaml give "
            "--config-dir RUN --config-name config"
        )
    return ""


def _key_of_value(
    word: str, known: Collection[str], given: Collection[str], *, is_one_of_several: bool
) -> str:
    """The key that a value without one may be of: a run's, a file's or a folder's."""
    is_run = word.endswith(".pt") or os.path.isdir(f"{word}/checkpoints")
    keys = ["a", "b", "data.root", "input", "root", "run", "other", "output"]
    if is_run or (is_one_of_several and "checkpoint" in known):
        keys = ["checkpoint", "a", "b", "resume", *keys[3:]]
    if word.endswith(".json") and os.path.isfile(word):
        keys = ["annotations", *keys]
        if is_one_of_several:
            keys = ["results", *keys]
    for key in keys:
        if key in known and key not in given:
            return key
    return "experiment" if "data.root" in known else "KEY"


def in_settings_of(command: type, remedy: str) -> str:
    """The remedy of a training in the settings of a command that has no training's.

    What the command calls otherwise is renamed, and what it lacks left out.

    >>> from retina_dist.task.settings import EvaluateConfig
    >>> in_settings_of(EvaluateConfig, "give data.val_images=DIR, or set data.bad_images=skip.")
    'give images=DIR.'
    """
    own = "|".join(settings_by_key(command))
    remedy = re.sub(
        rf"(?<!data=auto )\b(?:data|strategy)\.(?:train_|val_)?(?=(?:{own})=)", "", remedy
    )
    remedy = re.sub(r"(\b\w+=\w+) or \1\b", r"\1", remedy)
    remedy = re.sub(r"; give (?=(?:experiment|task)=)", "; train one with ", remedy)
    return re.sub(
        r",? or (?!task=)[^;,=]*\b(?:data|model)(?:\.\w+)?=(?:\[\S*\]|[^\s;,]+?)(?=[;,.]?(?:\s|$))",
        "",
        remedy,
    )
